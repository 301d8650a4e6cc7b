"""What the views have in common: consoles, tables with a title and a legend, aligned pairs, and sentences that fit.

In: words. Out: tables and texts of rich, or what a console prints. Lines are broken here, between words, because a
terminal breaks them anywhere, and rich breaks paths that are to be copied. Where a console leads to a pipe or a file,
a sentence is one line, however long, and a table is as wide as it needs to be, so that programs find what they look
for. Who sets COLUMNS in the environment asks for lines of that width there, too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from textwrap import wrap
from typing import IO, Any, TextIO, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDTH = 79
_TRAILING_BLANKS = re.compile(r" +(?=\n)")
PIPED_WIDTH = 200
"""Columns of what goes to no terminal, unless the environment has COLUMNS."""


def console(*, soft_wrap: bool = False, **options: Any) -> Console:
    """Returns a console of rich with its `options`. `soft_wrap`: what is printed on a terminal is broken by that alone;
    elsewhere no sentence is broken, unless the environment has COLUMNS, and no line ends with blanks."""
    made = Console(soft_wrap=soft_wrap, **options)
    if made.is_terminal:
        return made
    has_width = os.environ.get("COLUMNS", "").isdigit()
    options["file"] = cast("TextIO", _WithoutTrailingBlanks(made.file))
    return Console(soft_wrap=soft_wrap or not has_width, width=None if has_width else PIPED_WIDTH, **options)


class _WithoutTrailingBlanks:
    """A stream that leaves out the blanks with which rich fills the rows of a table."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(_TRAILING_BLANKS.sub("", text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def titled_table(title: str, first: str = "") -> Table:
    """Returns a table without lines, whose first column is headed `first`."""
    table = Table(title=title, title_justify="left", title_style="dim", box=None, header_style="dim", pad_edge=False)
    table.add_column(first, no_wrap=True)
    return table


def legend(words: str) -> Text:
    """Returns what stands below a table: what its columns mean."""
    return Text("\n".join(_lines(words, _WIDTH)), style="dim italic")


def say(console: Console, words: str, style: str = "") -> None:
    """Prints a sentence, on a terminal broken between words. A word is never broken: it may be a path."""
    lines = _lines(words, console.width) if _breaks(console) else [words]
    console.print(Text("\n".join(lines), style=style), soft_wrap=True)


def show_pairs(console: Console, rows: Sequence[tuple[str, str]]) -> None:
    """Prints names and what belongs to them as aligned lines, broken as those of `say`."""
    width = max(len(name) for name, _ in rows) + 2
    text = Text()
    for number, (name, value) in enumerate(rows):
        lines = _lines(value, max(20, console.width - width)) if _breaks(console) else [value]
        text.append("\n" if number else "").append(name.ljust(width), style="dim")
        text.append(f"\n{' ' * width}".join(lines))
    console.print(text, soft_wrap=True)


def _breaks(console: Console) -> bool:
    return console.is_terminal or not console.soft_wrap


def _lines(words: str, width: int) -> list[str]:
    return [
        line
        for part in words.split("\n")
        for line in wrap(part, width, break_long_words=False, break_on_hyphens=False) or [""]
    ]
