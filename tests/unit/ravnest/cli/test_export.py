from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from ravnest.cli.main import app, describe
from ravnest.cli.views import tables
from ravnest.driver.observe.metrics_file import MetricsWriter

RUNNER = CliRunner()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "nothing was named to export"),
        (["--tensorboard", "t", "--force"], "is about weights"),
        (["--tensorboard", "t", "--dtype", "float16"], "is about weights"),
        (["--weights", "w.pt"], "w.pt: --weights: expected the name of a .safetensors file"),
        (["--weights", "w.safetensors", "--part-gb", "inf"], "--part-gb: must be a finite number, 0 or more, not inf"),
        (["--weights", "w.safetensors"], "r: no run is here: there is no such folder"),
        (["--huggingface", "h"], "r: no run is here: there is no such folder"),
    ],
)
def test_what_cannot_be_exported_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = RUNNER.invoke(app, ["export", "r", *options])
    assert isinstance(result.exception, Exception)
    (line,), code = describe(result.exception)
    assert said in line
    assert code == 2
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_precision_is_refused_by_its_name() -> None:
    result = RUNNER.invoke(app, ["export", "r", "--weights", "w.safetensors", "--dtype", "int3"])
    assert isinstance(result.exception, Exception)
    (line,), code = describe(result.exception)
    assert line == "--dtype: 'int3' is not one of 'float32', 'bfloat16', 'float16'."
    assert code == 2


def test_metrics_need_no_plan(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path / "metrics.jsonl") as writer:
        writer.write("evaluated", 3.0, samples=130, loss=1.5, metrics={}, final=True)
    result = RUNNER.invoke(app, ["export", str(tmp_path), "--tensorboard", str(tmp_path / "t")])
    assert result.exit_code == 0, result.output
    assert "Wrote 1 points." in result.output


def test_how_far_it_is_stands_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(*given: Any) -> list[Path]:
        given[-1](0.25)
        return [Path("mine.safetensors")]

    terminal = StringIO()
    monkeypatch.setattr(tables, "console", lambda **_: Console(file=terminal, force_terminal=True, width=80))
    monkeypatch.setattr("ravnest.results.export.open_run", lambda *_: SimpleNamespace(folder=tmp_path))
    monkeypatch.setattr("ravnest.results.export.open_weights_of_run", lambda run: None)
    monkeypatch.setattr("ravnest.results.export.save_weights", save)
    result = RUNNER.invoke(app, ["export", "r", "--weights", "mine.safetensors"])
    assert result.exit_code == 0, result.output
    assert "writing the weights to mine.safetensors … 25%" in terminal.getvalue()
    assert "Wrote mine.safetensors" in result.stdout


def test_the_file_that_is_being_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = SimpleNamespace(folder=tmp_path)
    monkeypatch.setattr("ravnest.results.export.open_run", lambda *_: opened)
    monkeypatch.setattr("ravnest.results.export.open_weights_of_run", lambda run: None)
    for save in ("save_weights", "save_huggingface"):
        monkeypatch.setattr(f"ravnest.results.export.{save}", lambda *_: [])
    result = RUNNER.invoke(app, ["export", "r", "--weights", "mine.safetensors", "--huggingface", "hf"])
    assert result.exit_code == 0, result.output
    assert "writing the weights to mine.safetensors" in result.stderr
    assert "writing the weights to hf/model.safetensors" in result.stderr
