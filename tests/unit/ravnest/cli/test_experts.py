from pathlib import Path

import pytest
from typer.testing import CliRunner

from ravnest.cli.main import app, describe

FILE = """
name: test
grid: [2, 2]
expert: {factory: "tests.support.experts:block"}
input_shape: [4]
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serve", "--experts", "9.*"], "--experts: the grid 2 × 2 has no expert '9.*'"),
        (["serve", "--host", "192.0.2.1"], "--token-file: expected a file that all members share"),
        (["serve", "--name", "a b"], "--name: expected 1 to 40 letters"),
        (["show"], "--peer: expected the address of a node of the table, as HOST:PORT"),
        (["show", "--peer", "nowhere"], "--peer: expected host:port"),
    ],
)
def test_a_wrong_option_is_told_with_its_name(words: list[str], said: str, tmp_path: Path) -> None:
    path = tmp_path / "experts.yaml"
    path.write_text(FILE)
    told = CliRunner().invoke(app, ["experts", words[0], str(path), *words[1:]])
    assert isinstance(told.exception, Exception)
    (line,), code = describe(told.exception)
    assert code == 2
    assert line.startswith(said)


@pytest.mark.parametrize("command", ["serve", "show"])
def test_a_wrong_file_is_told_with_its_name_and_key(command: str, tmp_path: Path) -> None:
    path = tmp_path / "experts.yaml"
    path.write_text(FILE.replace("[2, 2]", "[2, -2]"))
    told = CliRunner().invoke(app, ["experts", command, str(path), "--peer", "127.0.0.1:7"])
    assert isinstance(told.exception, Exception)
    lines, code = describe(told.exception)
    assert code == 2
    assert str(path) in lines[0]
    assert "grid" in lines[0]
