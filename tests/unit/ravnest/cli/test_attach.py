from pathlib import Path

import pytest
from typer.testing import CliRunner

from ravnest.checkpoints.run_lock import RunLock
from ravnest.cli import attach
from ravnest.cli.main import app
from ravnest.driver.observe.report import FailedEvent, PhaseEvent
from tests.unit.ravnest.results.test_run_state import PROGRESS, run_with


def attached(run: Path, monkeypatch: pytest.MonkeyPatch, end: BaseException | None = None) -> tuple[int, str]:
    """Attach to a run that ends, or at which the user presses Ctrl-C, after the first look."""
    lock = RunLock(run)

    def sleep(seconds: float) -> None:
        if end is not None:
            raise end
        lock.release()

    monkeypatch.setattr(attach.time, "sleep", sleep)
    told = CliRunner().invoke(app, ["attach", str(run)])
    lock.release()
    return told.exit_code, told.output


def test_the_view_goes_on_to_the_end_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_with(tmp_path / "r", PhaseEvent("saving"), PROGRESS, stopped_early=False)
    code, output = attached(run, monkeypatch)
    assert code == 0
    assert "480/960 samples" in output
    assert output.endswith("it is finished\n")


def test_a_run_that_fails_is_told_by_the_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert attached(run_with(tmp_path / "r", PROGRESS), monkeypatch)[0] == 1


def test_a_run_that_is_stopped_at_once_is_told_as_one_that_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_with(tmp_path / "r", PROGRESS, FailedEvent("stopped at once, by Ctrl-C", at_once=True))
    code, output = attached(run, monkeypatch)
    assert code == 130
    assert output.endswith(f"{run}: it is stopped at once\n")


def test_ctrl_c_leaves_the_view_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = attached(run_with(tmp_path / "r", PROGRESS), monkeypatch, KeyboardInterrupt())
    assert code == 0
    assert "the run goes on" in output


def test_a_run_that_has_ended_has_no_live_view(tmp_path: Path) -> None:
    run = run_with(tmp_path / "r", PhaseEvent("saving"), stopped_early=False)
    assert "it is finished" in str(CliRunner().invoke(app, ["attach", str(run)]).exception)
