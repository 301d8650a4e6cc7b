"""Percentages are meant one way, in every view and in every table of experiments (CONTRIBUTING.md, Words): a share is
written as a percentage, a ratio of two figures as a number, and no column mixes them."""

import re
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, Group
from rich.table import Table

from tests.unit.ravnest.cli.views.test_tables_of_all_views import VIEWS

ROOT = Path(__file__).parents[5]
RESULTS = sorted(ROOT.glob("experiments/*/RESULT.md"))
PERCENT = re.compile(r"\d ?%")
BARE = re.compile(r"[+-]?\d[\d,.]*")
FRACTION = re.compile(r"0?\.\d+")
SHARES = re.compile(r"\b(share|busy|compute|waiting|late|of the day|of plan)\b")
"""What is named so is a share of a whole."""


def mixed(columns: dict[str, Sequence[str]]) -> list[str]:
    """The columns in which percentages and bare numbers stand below each other, or a share is a fraction."""
    found = []
    for name, cells in columns.items():
        bare = [cell for cell in cells if BARE.fullmatch(cell.strip())]
        if any(PERCENT.search(cell) for cell in cells) and bare:
            found.append(f"{name}: {bare[0]} below percentages")
        if SHARES.search(name) and any(FRACTION.fullmatch(cell.strip()) for cell in cells):
            found.append(f"{name}: a share as a fraction")
    return found


class Kept(Console):
    """A console that keeps the tables which are printed."""

    def __init__(self, **options: Any) -> None:
        self._out = StringIO()
        super().__init__(file=self._out, **options)
        self.tables: list[Table] = []

    @property
    def shown(self) -> str:
        """Everything that was printed."""
        return self._out.getvalue()

    def print(self, *objects: Any, **options: Any) -> None:
        self.tables += [each for one in objects for each in _tables(one)]
        super().print(*objects, **options)


def _tables(shown: Any) -> Iterator[Table]:
    if isinstance(shown, Table):
        yield shown
    elif isinstance(shown, Group):
        for each in shown.renderables:
            yield from _tables(each)


def columns_of(table: Table) -> dict[str, Sequence[str]]:
    """Without those that have no head: their rows name what they are."""
    return {f"{column.header}": [str(cell) for cell in column.cells] for column in table.columns if column.header}


def markdown_tables(text: str) -> Iterator[list[list[str]]]:
    """The rows of each table, the heads first."""
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in block.splitlines()]
        yield [rows[0], *rows[2:]]


def test_a_column_that_mixes_is_found() -> None:
    assert mixed({"gain": ["12%", "0.12"], "loss": ["0.12", "–"], "busy": ["12%", "–"]}) == [
        "gain: 0.12 below percentages"
    ]
    assert mixed({"share, mean": ["0.12"]}) == ["share, mean: a share as a fraction"]


def test_no_view_mixes_percentages_with_fractions() -> None:
    seen = 0
    for name, view in VIEWS.items():
        console = Kept(width=200, height=30, soft_wrap=view.soft_wrap)
        view.show(console)
        for table in console.tables:
            columns = columns_of(table)
            seen += sum(any(PERCENT.search(cell) for cell in cells) for cells in columns.values())
            assert (name, mixed(columns)) == (name, [])
        assert not re.search(r"\d %", console.shown), f"{name}: a blank before %"
    assert seen >= 8, "the views have columns of percentages: this test has found too few"


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.parent.name)
def test_no_table_of_an_experiment_mixes_percentages_with_fractions(path: Path) -> None:
    for heads, *rows in markdown_tables(path.read_text(encoding="utf-8")):
        if heads[:2] == ["part", "claim"]:  # each row is of another kind: its target and what was measured agree
            for row in rows:
                target, measured = row[2], row[3]
                if BARE.fullmatch(measured) and PERCENT.search(target):
                    pytest.fail(f"{row[1]}: a target of {target}, and measured was {measured}")
            continue
        assert mixed({head: [row[i] for row in rows] for i, head in enumerate(heads)}) == []
