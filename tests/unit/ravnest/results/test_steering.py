"""What a run is asked for, and its answer: the run is a folder with a lock, and the test writes what it would."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ravnest.checkpoints.run_lock import RunLock
from ravnest.driver.node_requests import RunRequest, take_requests
from ravnest.driver.observe.report import (
    CheckpointWrittenEvent,
    ClusterLostEvent,
    EvaluatedEvent,
    PhaseEvent,
    ProgressEvent,
    RoundCommittedEvent,
    RunEvent,
    as_plain,
    kind_of,
)
from ravnest.errors import InvalidInput
from ravnest.results.steering import answer, ask, require_running
from tests.unit.ravnest.results.test_run_state import crashed, run_with

SAVED = CheckpointWrittenEvent(Path("r/checkpoints/round-2"), 2)


class Run:
    """A run that writes an event each time that somebody waits for it, and then ends."""

    def __init__(self, path: Path, *events: RunEvent) -> None:
        self.path, self.events, self.lock, self.now_s = path, list(events), RunLock(path), 0.0

    def now(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        if not self.events:
            self.lock.release()
            return
        event = self.events.pop(0)
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"kind": kind_of(event), "at_s": 1.0, **as_plain(event)}) + "\n")


def test_a_request_is_answered_by_what_comes_after_it(tmp_path: Path) -> None:
    before = CheckpointWrittenEvent(Path("r/checkpoints/round-1"), 1)
    run = Run(run_with(tmp_path / "r", before), PhaseEvent("draining"), SAVED)
    asked = ask(run.path, "checkpoint")
    assert take_requests(run.path) == [RunRequest("checkpoint")]
    assert answer(asked, 60.0, now=run.now, wait=run.wait) == SAVED
    run.lock.release()


def test_what_was_under_way_when_it_was_asked_for_is_no_answer(tmp_path: Path) -> None:
    committed, progress = RoundCommittedEvent(2, 100), ProgressEvent(9.0, 130, None, ())
    earlier, later = EvaluatedEvent(120, 2.0, {}, final=False), EvaluatedEvent(140, 1.9, {}, final=False)
    run = Run(run_with(tmp_path / "r", committed, progress), earlier, SAVED, later, replace(SAVED, round=3))
    asked = ask(run.path, "evaluate"), ask(run.path, "checkpoint")
    assert answer(asked[0], 60.0, now=run.now, wait=run.wait) == later
    assert answer(asked[1], 60.0, now=run.now, wait=run.wait) == replace(SAVED, round=3)
    run.lock.release()


def test_of_a_run_that_has_gone_back_the_next_is_the_answer(tmp_path: Path) -> None:
    lost = ClusterLostEvent("c0", "c0.s1", "desk", "it died", 60, ("c1",))
    after = EvaluatedEvent(90, 2.0, {}, final=False)
    run = Run(run_with(tmp_path / "r", ProgressEvent(9.0, 130, None, ())), lost, after)
    assert answer(ask(run.path, "evaluate"), 60.0, now=run.now, wait=run.wait) == after
    last = EvaluatedEvent(130, 1.5, {}, final=True)
    run.events.append(last)
    assert answer(ask(run.path, "evaluate"), 60.0, now=run.now, wait=run.wait) == last
    run.lock.release()


def test_waiting_has_an_end(tmp_path: Path) -> None:
    run = Run(run_with(tmp_path / "r"), *[PhaseEvent("training")] * 100)
    asked = ask(run.path, "evaluate")
    assert answer(asked, 3.0, now=run.now, wait=run.wait) is None
    assert 3.0 <= run.now_s < 3.5
    run.lock.release()


def test_the_end_of_the_run_answers_everything(tmp_path: Path) -> None:
    run = Run(run_with(tmp_path / "r"), EvaluatedEvent(10, 2.0, {}, final=False))
    asked = ask(run.path, "stop")
    assert answer(asked, 60.0, now=run.now, wait=run.wait) is None
    assert run.now_s < 1.0


def test_a_run_that_has_ended_can_be_asked_for_nothing(tmp_path: Path) -> None:
    run = run_with(tmp_path / "r", PhaseEvent("saving"), stopped_early=False)
    with pytest.raises(InvalidInput, match="it is finished"):
        ask(run, "stop")
    crashed(run)
    with pytest.raises(InvalidInput, match="it is killed"):
        require_running(run)
    assert take_requests(run) == []
