import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import ravnest
from ravnest.cli.main import app, describe
from ravnest.results.evaluation import Evaluation


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    given: dict[str, Any] = {}

    def evaluate(run: Path, **options: Any) -> Evaluation:
        given.update(options, run=run)
        options["step"]("reading the data")
        options["progress"](0.5)
        return Evaluation(run, run / "weights.safetensors", "train", 100, 1.25, {"accuracy": 0.5}, {}, 2.0)

    monkeypatch.setattr(ravnest, "evaluate", evaluate, raising=False)
    return given


def test_options_reach_the_door_and_the_result_is_one_document(asked: dict[str, Any]) -> None:
    told = CliRunner().invoke(app, ["evaluate", "r", "--data", "train", "--device", "cuda:1", "--job", "j", "--json"])
    assert told.exit_code == 0, told.output
    assert (asked["run"], asked["data"], asked["device"], asked["job"]) == (Path("r"), "train", "cuda:1", Path("j"))
    assert json.loads(told.stdout)["loss"] == 1.25


def test_without_json_the_figures_are_shown(asked: dict[str, Any]) -> None:
    told = CliRunner().invoke(app, ["evaluate", "r"])
    assert told.exit_code == 0, told.output
    assert "1.25" in told.stdout


def test_a_folder_without_a_run_is_told_in_one_line(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["evaluate", str(tmp_path)])
    assert isinstance(told.exception, Exception)
    (line,), code = describe(told.exception)
    assert (line, code) == (f"{tmp_path}: no run is here: its plan.yaml is missing", 2)
