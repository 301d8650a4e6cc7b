from pathlib import Path

from typer.testing import CliRunner

from ravnest.cli.main import app
from ravnest.driver.observe.report import CheckpointWrittenEvent, PhaseEvent
from tests.unit.ravnest.results.test_run_state import PROGRESS, run_with


def test_what_happened_and_what_a_stage_left_are_printed(tmp_path: Path) -> None:
    run = run_with(tmp_path / "r", PhaseEvent("training"), PROGRESS, CheckpointWrittenEvent(Path("here"), 3))
    (run / "logs").mkdir()
    (run / "logs/c0.s1.log").write_text("Traceback\n")
    told = CliRunner().invoke(app, ["logs", str(run), "--follow"])  # it has ended: nothing to wait for
    assert told.stdout == "0 ms · training\n2.0 s · checkpoint of round 3: here\n"
    assert CliRunner().invoke(app, ["logs", str(run), "c0.s1"]).stdout == "Traceback\n"


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["logs", str(tmp_path)])
    assert "no run is here" in str(told.exception)
