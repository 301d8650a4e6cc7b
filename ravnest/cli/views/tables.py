"""What the tables of results have in common: a title, a first column that is never broken, and a legend.

In: words. Out: tables and texts of rich. A legend is broken into lines here, because consoles that break no line (so
that paths can be copied from them) would leave it to the terminal.
"""

from __future__ import annotations

from textwrap import fill

from rich.table import Table
from rich.text import Text

_WIDTH = 79


def titled_table(title: str, first: str = "") -> Table:
    """Returns a table without lines, whose first column is headed `first`."""
    table = Table(title=title, title_justify="left", title_style="dim", box=None, header_style="dim", pad_edge=False)
    table.add_column(first, no_wrap=True)
    return table


def legend(words: str) -> Text:
    """Returns what stands below a table: what its columns mean."""
    return Text(fill(words, _WIDTH, break_long_words=False, break_on_hyphens=False), style="dim italic")
