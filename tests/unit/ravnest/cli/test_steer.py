import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ravnest.checkpoints.run_lock import RunLock
from ravnest.cli.main import app
from ravnest.driver.node_requests import RunRequest, take_requests
from ravnest.driver.observe.report import FailedEvent, PhaseEvent
from ravnest.results import steering
from tests.unit.ravnest.results.test_run_state import PROGRESS, run_with


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (["stop"], "stop"),
        (["stop", "--now"], "stop_now"),
        (["checkpoint"], "checkpoint"),
        (["evaluate", "--live", "--wait", "0"], "evaluate"),
    ],
)
def test_a_request_reaches_the_run_and_nobody_waits(tmp_path: Path, given: list[str], kind: str) -> None:
    run = run_with(tmp_path / "r", PROGRESS)
    lock = RunLock(run)
    told = CliRunner().invoke(app, [*given, str(run), "--json"])
    lock.release()
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["asked"] == kind
    assert [request == RunRequest(request.kind) for request in take_requests(run)] == [True]


def test_what_does_not_come_in_time_is_exit_code_1(tmp_path: Path) -> None:
    run = run_with(tmp_path / "r", PROGRESS)
    lock = RunLock(run)
    told = [CliRunner().invoke(app, [what, str(run), "--wait", "0.01"]) for what in ("stop", "checkpoint")]
    lock.release()
    assert [each.exit_code for each in told] == [1, 1]
    assert "nothing came of it in 0.01 s" in told[1].output


def test_a_run_that_ends_before_it_answers_is_not_said_to_have_been_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_with(tmp_path / "r", PROGRESS)
    lock = RunLock(run)
    monkeypatch.setattr(steering, "put_request", lambda *_: lock.release())
    told = CliRunner().invoke(app, ["evaluate", str(run), "--live"])
    assert told.exit_code == 1
    assert told.output.endswith("it is asked to evaluate; it is failed without having done so\n")


@pytest.mark.parametrize("saved", [True, False])
def test_a_run_that_was_ended_at_once_is_not_said_to_have_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: bool
) -> None:
    run = run_with(tmp_path / "r", PROGRESS, FailedEvent("stopped at once", at_once=True))
    if saved:
        (run / "checkpoints/latest").write_text("checkpoint-000002\n")
    lock = RunLock(run)
    monkeypatch.setattr(steering, "put_request", lambda *_: lock.release())
    told = CliRunner().invoke(app, ["stop", str(run), "--now", "--wait", "5"])
    kept = "`--resume` goes on from checkpoint-000002" if saved else "it has no checkpoint"
    assert (told.exit_code, told.output) == (0, f"{run}: it is stopped at once; {kept}\n")


def test_a_run_that_has_ended_is_told_and_an_evaluation_there_takes_no_other_data(tmp_path: Path) -> None:
    run = run_with(tmp_path / "r", PhaseEvent("saving"), stopped_early=True)
    assert "it is stopped" in str(CliRunner().invoke(app, ["checkpoint", str(run)]).exception)
    for option, value in (("--samples", "5"), ("--device", "cpu"), ("--data", "train")):
        told = CliRunner().invoke(app, ["evaluate", str(run), "--live", option, value])
        assert str(told.exception).startswith(f"{option}: a run that goes on evaluates its own")
    told = CliRunner().invoke(app, ["evaluate", str(run), "--wait", "5"])
    assert str(told.exception) == "--wait: is for --live: this machine evaluates at once"


@pytest.mark.parametrize("what", [["stop"], ["checkpoint"], ["evaluate", "--live"]])
def test_a_wait_that_is_no_number_is_refused_and_nothing_is_asked(tmp_path: Path, what: list[str]) -> None:
    run = run_with(tmp_path / "r", PROGRESS)
    lock = RunLock(run)
    told = CliRunner().invoke(app, [*what, str(run), "--wait", "nan"])
    lock.release()
    assert str(told.exception) == "--wait: expected 0 or more, not nan"
    assert list(take_requests(run)) == []
