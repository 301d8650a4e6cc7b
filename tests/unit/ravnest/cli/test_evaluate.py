import json
import signal
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
    told = CliRunner().invoke(
        app, ["evaluate", "r", "--data", "train", "--device", "cuda:1", "--job", "j", "--samples", "64", "--json"]
    )
    assert told.exit_code == 0, told.output
    assert (asked["run"], asked["data"], asked["device"], asked["job"]) == (Path("r"), "train", "cuda:1", Path("j"))
    assert asked["samples"] == 64
    assert json.loads(told.stdout)["loss"] == 1.25


def test_without_json_the_figures_are_shown(asked: dict[str, Any]) -> None:
    told = CliRunner().invoke(app, ["evaluate", "r"])
    assert told.exit_code == 0, told.output
    assert "1.25" in told.stdout


def test_ctrl_c_asks_for_the_figures_so_far_once_there_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(run: Path, **options: Any) -> Evaluation:
        options["progress"](0.25)
        assert not options["stop"]()
        signal.raise_signal(signal.SIGINT)
        assert options["stop"]()
        return Evaluation(run, run, "train", 100, 1.25, {}, {}, 2.0, set_samples=16_000, stopped_early=True)

    monkeypatch.setattr(ravnest, "evaluate", evaluate, raising=False)
    told = CliRunner().invoke(app, ["evaluate", "r", "--data", "train"])
    assert told.exit_code == 130, told.output
    assert "100 of 16,000 training samples in 2.0 s" in told.stdout
    assert "Stopped early" in told.stdout


def test_ctrl_c_before_there_are_figures_ends_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(run: Path, **options: Any) -> Evaluation:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("it went on")

    monkeypatch.setattr(ravnest, "evaluate", evaluate, raising=False)
    told = CliRunner().invoke(app, ["evaluate", "r"])
    assert (told.exit_code, "interrupted" in told.stderr) == (130, True)


def test_a_folder_without_a_run_is_told_in_one_line(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["evaluate", str(tmp_path)])
    assert isinstance(told.exception, Exception)
    (line,), code = describe(told.exception)
    assert (line, code) == (f"{tmp_path}: no run is here: its plan.yaml is missing", 2)
