from pathlib import Path

import pytest
from typer.testing import CliRunner

from ravnest.cli.main import app, describe


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "is neither a plan.yaml nor a nodes.yaml"),
        ("nodes: []", "nodes: needs at least one entry"),
    ],
)
def test_a_file_that_fits_nothing_is_told_before_any_machine_is_asked(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "some.yaml"
    path.write_text(text)
    told = CliRunner().invoke(app, ["doctor", str(path)])
    assert isinstance(told.exception, Exception)
    (line,), code = describe(told.exception)
    assert (line, code) == (f"{path}: {said}", 2)
