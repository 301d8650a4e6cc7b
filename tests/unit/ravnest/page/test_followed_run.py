import json
import os
from pathlib import Path
from typing import Any

import pytest

from cluster_planner import Plan, save_plan
from ravnest.checkpoints.run_lock import RunLock
from ravnest.driver.observe.report import FailedEvent, NoticeEvent, PhaseEvent, as_plain, kind_of
from ravnest.page.followed_run import FollowedRun
from ravnest.results import run_records


def words(event: object) -> str:
    return event.text if isinstance(event, NoticeEvent) else type(event).__name__


def write(run: Path, *events: Any) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        for event in events:
            file.write(json.dumps({"kind": kind_of(event), "at_s": 1.0, **as_plain(event)}) + "\n")


@pytest.fixture
def run(tmp_path: Path, plan: Plan) -> Path:
    save_plan(plan, tmp_path / "plan.yaml")
    write(tmp_path, PhaseEvent("training"), NoticeEvent("first"))
    return tmp_path


def texts(followed: FollowedRun) -> list[str]:
    followed.look()
    return [each["text"] for each in followed.document()["events"]]


def test_each_look_adds_what_has_come(run: Path) -> None:
    lock = RunLock(run)
    followed = FollowedRun(run, words)
    assert texts(followed) == ["PhaseEvent", "first"]
    write(run, NoticeEvent("second"))
    assert texts(followed) == ["PhaseEvent", "first", "second"]
    assert followed.document()["run"]["state"] == "running"
    lock.release()
    assert followed.document()["run"]["state"] == "failed"
    assert followed.curves()["loss"] == {"c0": [], "c1": []}


def test_a_finished_run_is_one_with_a_summary(run: Path) -> None:
    write(run, PhaseEvent("saving"))
    (run / "summary.json").write_text('{"stopped_early": false, "baselines": {"bigram": 2.5}}')
    followed = FollowedRun(run, words)
    followed.look()
    assert followed.document()["run"]["state"] == "finished"
    assert followed.document()["baselines"] == {"bigram": 2.5}


def test_a_resumed_run_starts_until_it_has_written_something_and_may_have_been_stopped_at_once(run: Path) -> None:
    write(run, PhaseEvent("saving"))
    (run / "summary.json").write_text('{"stopped_early": true}')
    followed = FollowedRun(run, words)

    def said() -> tuple[object, object]:
        followed.look()
        told: Any = followed.document()["run"]
        return told["state"], told["phase"]

    assert said() == ("stopped", "saving")
    lock = RunLock(run)
    os.utime(run / ".lock", (2000, 2000))
    os.utime(run / "metrics.jsonl", (1000, 1000))
    assert said() == ("running", "starting")
    write(run, PhaseEvent("training"))
    assert said() == ("running", "training")
    write(run, FailedEvent("stopped at once, by Ctrl-C", at_once=True))
    lock.release()
    assert said() == ("stopped at once", "training")


def test_a_run_that_has_not_begun_is_waited_for(tmp_path: Path, plan: Plan) -> None:
    followed = FollowedRun(tmp_path / "r", words)
    followed.look()
    assert "no plan.yaml yet" in str(followed.document()["problem"])
    (tmp_path / "r").mkdir()
    save_plan(plan, tmp_path / "r/plan.yaml")
    write(tmp_path / "r", NoticeEvent("now"))
    assert texts(followed) == ["now"]


def test_a_plan_that_is_no_plan_is_told(run: Path) -> None:
    (run / "plan.yaml").write_text("version: 1\n")
    followed = FollowedRun(run, words)
    followed.look()
    assert "plan.yaml" in str(followed.document()["problem"])
    assert followed.curves() == {}


def test_a_file_that_was_begun_anew_and_damaged_lines_are_lived_with(run: Path) -> None:
    followed = FollowedRun(run, words)
    assert len(texts(followed)) == 2
    (run / "metrics.jsonl").write_text("junk\n")
    assert followed.look() is None
    assert texts(followed) == []
    assert followed.document()["run"]["damaged_lines"] == 1


def test_a_long_past_comes_in_pieces(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = run_records.lines_since
    monkeypatch.setattr(run_records, "lines_since", lambda path, at: read(path, at) if at else ([], 1))
    write(run, *[NoticeEvent("x" * 1000)] * 100)
    followed = FollowedRun(run, words)
    followed.look()
    assert followed.behind
    assert followed.document()["read"] < 1.0
    followed.look()
    assert followed.document()["read"] == 1.0
