from pathlib import Path

import pytest
from typer.testing import CliRunner

from ravnest.cli.main import app, describe


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["get", "k"], "--peer: expected the address of a node of the table, as HOST:PORT"),
        (["get", "k", "--peer", "nowhere"], "--peer: expected host:port or [IPv6 address]:port, not 'nowhere'"),
        (["health", "--peer", "127.0.0.1:0"], "--peer: expected the port at which the peer listens, not '127.0.0.1:0'"),
        (["start", "--listen", "here"], "--listen: expected host:port or [IPv6 address]:port, not 'here'"),
    ],
)
def test_a_wrong_address_is_told_with_its_option(words: list[str], said: str) -> None:
    told = CliRunner().invoke(app, ["dht", *words])
    assert isinstance(told.exception, Exception)
    (line,), code = describe(told.exception)
    assert (line, code) == (said, 2)


def test_a_key_file_that_holds_no_key_is_told_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "some.key"
    path.write_text("no key")
    told = CliRunner().invoke(app, ["dht", "store", "k", "v", "--peer", "127.0.0.1:7", "--key-file", str(path)])
    assert isinstance(told.exception, Exception)
    (line,), code = describe(told.exception)
    assert code == 2
    assert line.startswith(f"{path}: expected a private key")
