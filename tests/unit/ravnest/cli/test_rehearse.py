from pathlib import Path

import pytest
from typer.testing import CliRunner

from ravnest.cli import main as cli
from ravnest.errors import InvalidInput

RUNNER = CliRunner()


def test_a_sentence_of_the_help_breaks_where_the_terminal_ends_alone() -> None:
    told = RUNNER.invoke(cli.app, ["rehearse", "--help"], env={"COLUMNS": "300", "TERMINAL_WIDTH": "300"})
    assert "no longer than 3 minutes, unless --samples" in told.output


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--speed", "0"], "--speed"),
        (["--speed", "-1"], "--speed"),
        (["--speed", "inf"], "--speed"),
        (["--speed", "nan"], "--speed"),
        (["--samples", "0"], "--samples"),
        (["--minutes", "0"], "--minutes"),
        (["--minutes", "nan"], "--minutes"),
        (["--samples", "5", "--whole"], "samples and whole"),
        (["--samples", "5", "--minutes", "1"], "samples and minutes"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_is_read(
    options: list[str], expected: str, tmp_path: Path
) -> None:
    result = RUNNER.invoke(cli.app, ["rehearse", str(tmp_path / "none.yaml"), *options])
    assert isinstance(result.exception, InvalidInput)
    (line, *_), code = cli.describe(result.exception)
    assert code == 2
    assert expected in line
