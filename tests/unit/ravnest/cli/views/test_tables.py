from io import StringIO

from rich.console import Console

from ravnest.cli.views.tables import legend, titled_table


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
