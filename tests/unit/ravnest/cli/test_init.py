from pathlib import Path

import pytest
from typer.testing import CliRunner

from ravnest.cli.main import app


def test_options_answer_the_questions_and_the_next_commands_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "my job"
    done = CliRunner().invoke(app, ["init", str(folder), "--machines", "desk, attic", "--kind", "images"])
    assert done.exit_code == 0, done.output
    assert f"Wrote {folder / 'job.yaml'}" in done.output
    assert f"Next: cd '{folder}' && ravnest plan nodes.yaml && ravnest run" in done.output
    assert 'name: "attic"' in (folder / "nodes.yaml").read_text()


def test_a_terminal_is_asked_what_is_not_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ravnest.cli.init.asks_here", lambda: True)
    said = "numbers\ndesk\nrtx 3060\n100\n2\n"
    done = CliRunner().invoke(app, ["init", str(tmp_path / "job")], input=said)
    assert done.exit_code == 0, done.output
    assert done.output.count("?") == 5
    nodes = (tmp_path / "job/nodes.yaml").read_text()
    assert '{name: "desk", hardware: "rtx 3060", up_mbps: 100, down_mbps: 100}' in nodes
    assert "minutes: 2" in (tmp_path / "job/job.yaml").read_text()
