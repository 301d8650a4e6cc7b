from pathlib import Path

import pytest
from typer.testing import CliRunner

from ravnest.cli.main import app, describe


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "nodes.yaml: --output: is there already: --merge writes what is measured into it"),
        (["--merge", "--force"], "give one of --merge and --force"),
        (["-o", "."], ".: --output: is a folder; expected a file such as nodes.yaml"),
        (["--force", "--job", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["--force", "--address", "nowhere"], "--address (or RAY_ADDRESS): 'nowhere' is no HOST:PORT"),
    ],
)
def test_what_would_cost_a_file_or_cannot_be_is_told_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nodes.yaml").write_text("mine")
    told = CliRunner().invoke(app, ["profile", *options])
    assert isinstance(told.exception, Exception)
    (line,), code = describe(told.exception)
    assert line.startswith(said)
    assert code == 2
    assert (tmp_path / "nodes.yaml").read_text() == "mine"
