import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ravnest.cli.main import app
from ravnest.collaboration.people import FILE, People
from ravnest.errors import InvalidInput


def test_the_leaderboard_is_shown(tmp_path: Path) -> None:
    people = People()
    people.came("ab" * 32, "ada").samples = 1234
    (tmp_path / FILE).write_text(people.text())
    shown = CliRunner().invoke(app, ["collaborate", "people", str(tmp_path)])
    assert shown.exit_code == 0
    assert "ada" in shown.stdout
    assert "1,234" in shown.stdout
    as_json = CliRunner().invoke(app, ["collaborate", "people", str(tmp_path), "--json"])
    assert json.loads(as_json.stdout)[0]["samples"] == 1234


@pytest.mark.parametrize(
    "arguments",
    [
        ["people", "nowhere"],
        ["join", "no-such-file"],
        ["join", "ravnest-invitation-1:damaged"],
        ["start", "no-such-job.yaml", "--listen", "127.0.0.1:0"],
        ["start", "job.yaml"],
    ],
)
def test_wrong_input_is_the_users_to_mend(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    found = CliRunner().invoke(app, ["collaborate", *arguments])
    assert isinstance(found.exception, InvalidInput)
