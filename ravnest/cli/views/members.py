"""Shows who takes part where there is no plan: the people of a collaboration, and the hosts of experts.

In: people, or the hosts as `ravnest experts show --json` has them. Out: a table each. Names come from strangers, so
they are shown as they are, without markup and without control characters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from ravnest.cli.views.tables import titled_table
from ravnest.collaboration.people import Person
from ravnest.formatting import duration, harmless

_KEY_CHARACTERS = 16


def show_people(people: Sequence[Person], console: Console) -> None:
    """Prints a row for each person, in the order given. Of a public key its beginning is shown."""
    table = titled_table(f"{len(people)} {'person' if len(people) == 1 else 'people'}, most samples first", "name")
    table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"
    for name in ("samples", "steps", "visits", "refused", "scaled"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("public key", no_wrap=True)
    for one in people:
        numbers = (f"{number:,}" for number in (one.samples, one.steps, one.visits, one.refused, one.scaled))
        table.add_row(Text(harmless(one.name)), *numbers, one.key[:_KEY_CHARACTERS])
    console.print(table)


def show_hosts(hosts: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Prints a row for each host of experts."""
    table = titled_table("hosts", "host")
    table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"
    table.add_column("address", overflow="fold")
    for name in ("experts", "samples/s", "answer", "updates"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in hosts:
        table.add_row(
            Text(harmless(one["host"])),
            Text(harmless(one["address"])),
            f"{len(one['experts'])} of {one['most_experts']}",
            f"{one['samples_per_s']:,.0f}",
            duration(one["answer_ms"] / 1e3),
            f"{one['updates']:,}",
        )
    console.print(table)
