import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cluster_planner import Plan
from ravnest.cli.main import app
from tests.unit.ravnest.results.test_comparing import progress, run_of


@pytest.fixture
def runs(plan: Plan, tmp_path: Path) -> list[str]:
    return [str(run_of(tmp_path / name, plan, progress(80, loss))) for name, loss in (("a", 2.0), ("b", 3.0))]


def test_tables_a_document_and_a_picture_come_of_two_runs(runs: list[str], tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["compare", *runs, "--picture", str(tmp_path / "both.png")])
    assert told.exit_code == 0, told.output
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")
    document = json.loads(CliRunner().invoke(app, ["compare", *runs, "--json"]).stdout)
    assert document["losses"][-1] == [80, [2.0, 3.0]]


def test_runs_are_compared_by_their_names(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first", "second"):
        run_of(tmp_path / "runs" / name, plan, progress(80, 2.0))
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(app, ["compare", "first", "second"])
    assert told.exit_code == 0, told.output
    assert "did you mean runs/first?" in str(CliRunner().invoke(app, ["compare", "frst", "second"]).exception.hint)


@pytest.mark.parametrize(("name", "said"), [("both.txt", "a .png file"), ("none/both.png", "cannot be written")])
def test_a_picture_that_cannot_be_drawn_is_told(runs: list[str], tmp_path: Path, name: str, said: str) -> None:
    told = CliRunner().invoke(app, ["compare", *runs, "--picture", str(tmp_path / name)])
    assert said in str(told.exception)
