from io import StringIO

import pytest
from rich.console import Console

from ravnest.cli.views.tables import PIPED_WIDTH, console, legend, say, titled_table


def test_a_legend_fits_80_columns_on_a_console_that_breaks_no_line() -> None:
    out = StringIO()
    Console(file=out, width=200, soft_wrap=True).print(legend("words that mean something: " * 20))
    lines = out.getvalue().splitlines()
    assert len(lines) > 5
    assert max(map(len, lines)) < 80


def test_the_first_column_is_whole_however_narrow_the_terminal_is() -> None:
    out = StringIO()
    table = titled_table("times", "stage")
    table.add_column("node", overflow="fold")
    table.add_row("c10.s11", "a-machine-with-a-long-name")
    Console(file=out, width=20).print(table)
    assert "c10.s11" in out.getvalue()


@pytest.mark.parametrize("soft_wrap", [False, True])
def test_what_goes_to_a_pipe_is_not_broken_at_80_columns(soft_wrap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    out, words = StringIO(), "a sentence that no terminal has room for; " * 8 + "its end"
    shown_on = console(soft_wrap=soft_wrap, file=out)
    shown_on.print(words, highlight=False)
    say(shown_on, words)
    table = titled_table("settings", "key")
    table.add_column("value", overflow="fold")
    table.add_row("key", "v" * 120)
    shown_on.print(table)
    first, second, *rows = out.getvalue().splitlines()
    assert (first, second) == (words, words)
    assert [row for row in rows if "vv" in row] == [f"key  {'v' * 120}"]
    assert [row for row in rows if row.endswith(" ")] == []
    assert shown_on.width == PIPED_WIDTH


def test_columns_of_the_environment_and_a_terminal_have_their_own_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    out = StringIO()
    piped = console(file=out)
    assert piped.width == 70
    piped.print("a sentence of many words; " * 8, highlight=False)
    assert 60 < max(map(len, out.getvalue().splitlines())) <= 70
    assert console(file=StringIO(), soft_wrap=True).soft_wrap
    on_terminal = console(file=StringIO(), force_terminal=True)
    assert (on_terminal.width, on_terminal.soft_wrap) == (70, False)
