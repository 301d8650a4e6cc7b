from pathlib import Path

import pytest
from typer.testing import CliRunner

from ravnest.cli.main import app, describe
from ravnest.cli.profile import next_step


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "nodes.yaml: --output: is there already: --merge writes what is measured into it"),
        (["--merge", "--force"], "give one of --merge and --force"),
        (["-o", "new/nodes.yaml"], "new/nodes.yaml: --output: there is no folder new"),
        (["-o", "/proc/nodes.yaml"], "/proc/nodes.yaml: --output: cannot be written ("),
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


def test_the_next_command_is_one_that_works(tmp_path: Path) -> None:
    nodes, job, other = tmp_path / "nodes.yaml", tmp_path / "job.yaml", tmp_path / "my other" / "job.yaml"
    other.parent.mkdir()
    other.write_text("")
    assert next_step(nodes, other) == f"Next: ravnest plan {nodes} --job '{other}'"
    assert next_step(nodes, None).startswith(f"Next: write what to train into {job}, or")
    job.write_text("")
    assert next_step(nodes, None) == next_step(nodes, job) == f"Next: ravnest plan {nodes}"
    assert next_step(nodes, other).endswith(f"--job '{other}'")
