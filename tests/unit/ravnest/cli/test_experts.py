import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ravnest.cli import watch
from ravnest.cli.main import app, describe
from ravnest.errors import InvalidInput
from ravnest.experts import table_thread
from ravnest.experts.announcements import Seen
from ravnest.experts.grid import Claim, Dated, HostNews, Listens

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


@pytest.mark.parametrize(("words", "option"), [([], "--host"), (["--table-port", "7700"], "--table-port")])
def test_where_a_host_cannot_listen_the_option_that_said_where_is_named(
    words: list[str], option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_use(*_: object, **__: object) -> None:
        raise InvalidInput("cannot listen at 127.0.0.1:7700: Address already in use", key="listen")

    monkeypatch.setattr("ravnest.experts.opened_host", in_use)
    path = tmp_path / "experts.yaml"
    path.write_text(FILE)
    told = CliRunner().invoke(app, ["experts", "serve", str(path), *words])
    assert isinstance(told.exception, Exception)
    (line,), code = describe(told.exception)
    assert (line, code) == (f"{option}: cannot listen at 127.0.0.1:7700: Address already in use", 2)


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


def test_hosts_are_a_table_a_document_and_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    news = HostNews(Listens("attic", "2001:db8::7", 7800, 7801), 1, 4, 12.5, 0.25, 99)
    seen = Seen({"attic": Dated(news, 1e10)}, {}, {(0, 1): Dated(Claim(1, 0, "attic"), 1e10)}, complete=False)
    closed, pages = [], []

    class Table:
        def __init__(self, *given: object, **options: object) -> None: ...

        def run(self, asked: object) -> Future[Seen]:
            answer: Future[Seen] = Future()
            answer.set_result(seen)
            return answer

        def close(self) -> None:
            closed.append(1)

    def page(look: Any, name: Path, token: str) -> None:
        assert not closed[2:]  # the table is asked for as long as the page is shown
        pages.append(look())

    monkeypatch.setattr(table_thread, "TableThread", Table)
    monkeypatch.setattr(watch, "show_members_page", page)
    path = tmp_path / "experts.yaml"
    path.write_text(FILE)
    command = ["experts", "show", str(path), "--peer", "127.0.0.1:7"]
    text, document = CliRunner().invoke(app, command), CliRunner().invoke(app, [*command, "--json"])
    assert "test: 1 of 4 experts are hosted" in text.stdout
    assert "1 of 4" in text.stdout.splitlines()[-3]
    assert "there may be more" in text.stdout.splitlines()[-1]
    found = json.loads(document.stdout)
    assert (found["hosts"][0]["experts"], found["hosts"][0]["answer_ms"]) == (["0.1"], 250.0)
    assert (found["hosts"][0]["address"], found["complete"]) == ("[2001:db8::7]:7800", False)
    assert CliRunner().invoke(app, [*command, "--page"]).exit_code == 0
    assert pages == [found]
    assert len(closed) == 3


def test_what_members_say_does_nothing_to_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def opened(*_: object, report: Callable[[str], None], **__: object) -> Iterator[object]:
        report("desk.0123 cannot be reached: \x1b]0;title\x07")
        raise InvalidInput("it ends here")
        yield

    monkeypatch.setattr("ravnest.experts.opened_host", opened)
    path = tmp_path / "experts.yaml"
    path.write_text(FILE)
    told = CliRunner().invoke(app, ["experts", "serve", str(path)])
    assert told.stdout == "desk.0123 cannot be reached: ?]0;title?\n"
