"""What a run's folder tells, made by hand: of a running, a finished, a stopped, a failed and a killed run."""

import json
import os
from pathlib import Path

import pytest

from ravnest.checkpoints.run_folder import RunFolder
from ravnest.checkpoints.run_lock import RunLock
from ravnest.driver.observe.metrics_file import MetricsWriter
from ravnest.driver.observe.report import (
    ClusterProgress,
    EvaluatedEvent,
    FailedEvent,
    PhaseEvent,
    ProgressEvent,
    RunEvent,
    as_plain,
    kind_of,
)
from ravnest.errors import InvalidInput
from ravnest.results.run_state import find_run, is_run, run_state, state_of, states_in

CLUSTER = ClusterProgress("c0", 480, 12.0, None, 1, 40, 3)
PROGRESS = ProgressEvent(40.0, 480, 960, (CLUSTER,))


def run_with(path: Path, *events: RunEvent, stopped_early: bool | None = None) -> Path:
    """A folder as a run leaves it that wrote these events, and its summary where it came to its end."""
    (path / "checkpoints").mkdir(parents=True)
    (path / "plan.yaml").write_text("version: 1\n")
    with MetricsWriter(path / "metrics.jsonl") as writer:
        for second, event in enumerate(events):
            writer.write(kind_of(event), float(second), **as_plain(event))
    if stopped_early is not None:
        (path / "summary.json").write_text(json.dumps({"stopped_early": stopped_early}))
    return path


def crashed(path: Path) -> None:
    """Leave a lock as a process of this machine does that is killed."""
    lock = RunLock(path)
    kept = (path / ".lock").read_bytes()
    lock.release()
    (path / ".lock").write_bytes(kept)


def test_a_running_run_is_told_by_its_lock_with_its_process(tmp_path: Path) -> None:
    run = run_with(tmp_path / "r", PhaseEvent("training"), PROGRESS, EvaluatedEvent(240, 2.5, {}, final=False))
    lock = RunLock(run)
    (run / "metrics.jsonl").touch()
    found = run_state(run)
    lock.release()
    assert (found.state, found.phase, found.progress) == ("running", "training", PROGRESS)
    assert (found.held_out_loss, found.held_out_samples) == (2.5, 240)
    assert f"process {os.getpid()} on" in str(found.owner)
    assert run_state(run).state == "failed"  # its process gave the lock back without coming to an end


def test_a_resumed_run_is_in_no_phase_until_it_has_come_to_one(tmp_path: Path) -> None:
    run = run_with(tmp_path / "r", PROGRESS, PROGRESS, PROGRESS, PhaseEvent("saving"), stopped_early=True)
    metrics = run / "metrics.jsonl"
    lock = RunLock(run)
    os.utime(metrics, (1000, 1000))
    assert (run_state(run).state, run_state(run).phase) == ("running", None)  # it has written nothing yet
    with MetricsWriter(metrics) as writer:
        writer.write("stage", 0.0, cluster="c0", stage=0, process_bytes=1)
        assert run_state(run).phase is None
        writer.write("phase", 0.0, name="training", detail="")
        assert run_state(run).phase == "training"
        writer.write("failed", 9.0, reason="no room", at_once=False)
        assert run_state(run).phase is None  # it is resumed once more
    lock.release()


def test_a_run_that_failed_says_why_unless_it_has_gone_on_since(tmp_path: Path) -> None:
    failed = PhaseEvent("training"), FailedEvent("no room")
    assert run_state(run_with(tmp_path / "a", *failed)).reason == "no room"
    assert run_state(run_with(tmp_path / "b", *failed, PhaseEvent("training"))).reason is None


@pytest.mark.parametrize("earlier", [(), (PhaseEvent("saving"), PhaseEvent("training"))], ids=["new", "resumed"])
def test_a_run_that_was_stopped_at_once_has_not_failed_until_it_is_resumed_and_fails(
    tmp_path: Path, earlier: tuple[RunEvent, ...]
) -> None:
    events = (*earlier, PhaseEvent("training"), FailedEvent("stopped at once, by Ctrl-C", at_once=True))
    ended = run_state(run_with(tmp_path / "a", *events, stopped_early=True if earlier else None))
    assert (ended.state, ended.reason) == ("stopped at once", None)
    resumed = run_with(tmp_path / "b", *events, PhaseEvent("training"), FailedEvent("no room"))
    assert (run_state(resumed).state, run_state(resumed).reason) == ("failed", "no room")
    lock = RunLock(tmp_path / "a")
    assert run_state(tmp_path / "a").state == "running"
    lock.release()


def test_looking_does_not_take_the_lock_from_a_run_that_begins(tmp_path: Path) -> None:
    run = run_with(tmp_path / "r", PROGRESS)
    crashed(run)
    assert run_state(run).state == "killed"
    lock = RunLock(run)
    assert run_state(run).state == run_state(run).state == "running"
    lock.release()


@pytest.mark.parametrize(("stopped_early", "state"), [(False, "finished"), (True, "stopped"), (None, "failed")])
def test_an_ended_run_is_told_by_its_last_phase_and_its_summary(
    tmp_path: Path, stopped_early: bool | None, state: str
) -> None:
    ended = run_with(tmp_path / "r", PROGRESS, PhaseEvent("saving"), stopped_early=stopped_early)
    assert run_state(ended).state == state


def test_a_resumed_run_that_failed_is_not_finished_though_its_summary_is_there(tmp_path: Path) -> None:
    events = (PROGRESS, PhaseEvent("saving"), PhaseEvent("training"), PROGRESS)
    assert run_state(run_with(tmp_path / "r", *events, stopped_early=True)).state == "failed"


def test_a_killed_run_has_left_its_lock(tmp_path: Path) -> None:
    run = run_with(tmp_path / "r", PhaseEvent("training"), PROGRESS)
    crashed(run)
    found = run_state(run)
    assert found.state == "killed"
    assert found.owner is not None
    owner = json.loads((run / ".lock").read_text())
    (run / ".lock").write_text(json.dumps({**owner, "host": "another-machine"}))
    assert run_state(run).state == "unknown"  # its lock may not be seen from here


def test_every_state_has_one_cause() -> None:
    assert state_of("held", "saving", stopped_early=False) == "running"
    assert state_of("unknown", None, stopped_early=None) == "unknown"
    assert state_of("free", None, stopped_early=None) == "failed"
    assert state_of("free", "training", stopped_early=False) == "failed"


def test_ages_are_by_the_clock_that_is_given(tmp_path: Path) -> None:
    run = run_with(tmp_path / "r", PROGRESS)
    (run / "checkpoints/latest").write_text("checkpoint-000002\n")
    os.utime(run / "checkpoints/latest", (1000, 1000))
    os.utime(run / "metrics.jsonl", (1060, 1060))
    found = run_state(run, now_s=1090.0)
    assert (found.checkpoint, found.checkpoint_age_s, found.silent_s) == ("checkpoint-000002", 90.0, 30.0)


def test_runs_are_listed_by_when_they_wrote_last_and_other_folders_are_not(tmp_path: Path) -> None:
    for second, name in ((3, "b"), (1, "a"), (2, "c")):
        run = run_with(tmp_path / name, PROGRESS, PhaseEvent("saving"), stopped_early=False)
        os.utime(run / "metrics.jsonl", (second, second))
    (tmp_path / "c/checkpoints/latest").write_text("checkpoint-000001\n")
    RunFolder(tmp_path / "c").begin(tmp_path / "c/plan.yaml", rehearsal=True)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/plan.yaml").write_text("")
    (tmp_path / "file").write_text("")
    assert not is_run(tmp_path / "notes")
    found = states_in(tmp_path)
    assert [run.path.name for run in found] == ["a", "c", "b"]
    assert [run.is_rehearsal for run in found] == [False, True, False]
    with pytest.raises(InvalidInput, match="no such folder"):
        states_in(tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match="no run is here"):
        run_state(tmp_path / "notes")


def test_a_run_is_found_by_its_folder_or_its_name_and_a_slip_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_with(Path("runs/first"), PROGRESS)
    assert find_run(Path("runs/first")) == find_run(Path("first")) == Path("runs/first")
    for given in ("frist", "runs/frist"):
        with pytest.raises(InvalidInput) as told:
            find_run(Path(given))
        assert (told.value.path, told.value.hint) == (given, "did you mean runs/first?")
    with pytest.raises(InvalidInput) as told:
        find_run(Path("elsewhere/x"))
    assert told.value.hint == "expected a run's folder, or its name in runs/; in elsewhere/ there is no run"


def test_who_names_no_run_is_told_what_was_expected_and_which_runs_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_with(Path("runs/20260131-120000"), PROGRESS)
    Path("notes").mkdir()
    for given, missing in (("x", "there is no such folder"), ("notes", "its plan.yaml is missing")):
        with pytest.raises(InvalidInput, match=f"no run is here: {missing}") as told:
            find_run(Path(given))
        assert told.value.hint == (
            "expected a run's folder, or its name in runs/; in runs/ there is 20260131-120000"
            " (`ravnest runs runs` says more)"
        )
    Path("notes/plan.yaml").write_text("")
    with pytest.raises(InvalidInput, match=r"it has a plan\.yaml, and nothing has begun"):
        find_run(Path("notes"))
