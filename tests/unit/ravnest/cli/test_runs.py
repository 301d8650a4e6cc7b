import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ravnest.checkpoints.run_lock import RunLock
from ravnest.cli.main import app
from ravnest.driver.observe.report import PhaseEvent
from ravnest.errors import InvalidInput
from tests.unit.ravnest.results.test_run_state import PROGRESS, run_with


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    run_with(Path("runs/done"), PROGRESS, PhaseEvent("saving"), stopped_early=False)
    run_with(Path("runs/now"), PhaseEvent("training"), PROGRESS)
    return Path("runs")


def shown(*given: str) -> str:
    told = CliRunner().invoke(app, list(given))
    assert told.exit_code == 0, told.output
    return told.stdout


def test_each_run_is_a_row_and_its_state_is_explained(runs: Path) -> None:
    lock = RunLock(runs / "now")
    text = shown("runs", str(runs))
    lock.release()
    rows = {line.split()[0].rsplit("/", 1)[-1]: line.split()[1:3] for line in text.splitlines() if "/" in line}
    assert rows["done"] == ["finished", "480"]
    assert rows["now"] == ["running", "480"]
    assert "running: its process lives; finished: it came to its end." in " ".join(text.split())
    document = json.loads(shown("runs", str(runs), "--json"))
    assert sorted(run["state"] for run in document["runs"]) == ["failed", "finished"]


def test_a_folder_without_runs_says_so(tmp_path: Path) -> None:
    assert shown("runs", str(tmp_path)) == f"no runs in {tmp_path} yet: `ravnest run` makes one\n"


def test_a_runs_own_folder_is_no_folder_of_runs(runs: Path) -> None:
    told = CliRunner().invoke(app, ["runs", str(runs / "done")])
    assert isinstance(told.exception, InvalidInput)
    assert told.exception.hint == "`ravnest status runs/done` says how it is"


def test_a_running_run_says_what_is_left(runs: Path) -> None:
    lock = RunLock(runs / "now")
    (runs / "now/metrics.jsonl").touch()  # it has written since it began
    text = " ".join(shown("status", str(runs / "now")).split())
    document = json.loads(shown("status", str(runs / "now"), "--json"))
    lock.release()
    assert "480 of 960 in 40.0 s (12/s), 40.0 s left" in text
    assert "phase training" in text
    assert (document["state"], document["left_s"], document["progress"]["samples"]) == ("running", 40.0, 480)
    ended = " ".join(shown("status", str(runs / "done")).split())
    assert "left" not in ended
    assert "finished: it came to its end" in ended


def test_a_run_that_cannot_be_read_is_listed_beside_the_others(runs: Path) -> None:
    (runs / "now/metrics.jsonl").write_text('{"kind":"progress","at_s":1.0,"samples":"many"}\n')
    text = " ".join(shown("runs").split())
    assert "runs/done finished" in text
    assert "runs/now damaged – –" in text
    told = CliRunner().invoke(app, ["status", "now"])
    assert "runs/now/metrics.jsonl" in str(told.exception)
