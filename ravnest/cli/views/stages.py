"""Shows where each stage's time went, as shares of the steady state, and what its tensors took: one row a stage.

Decides the layout, which has to fit a terminal of 80 columns: a node's name that does not goes on in the next line.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from ravnest.driver.observe.report import StageFigures, TimeShares
from ravnest.formatting import size

_LEAST_SHOWN = 0.005


def stages_tables(stages: Sequence[StageFigures]) -> Group:
    """Two tables, so that each fits 80 columns: the shares of the time, and below what was waited for and what the
    tensors took. The busiest stage, which bounds the others, stands out. A run too short for a steady state shows
    all of it.
    """
    steady = all(each.steady is not None for each in stages)
    shares = {each.stage: each.steady if steady else each.overall for each in stages}
    told = [(each, share) for each in stages if (share := shares[each.stage]) is not None]
    busiest = max((share.compute for _, share in told), default=0.0)
    times = _table(f"where the time went ({'steady state' if steady else 'whole run, fill and drain included'})")
    for name in ("compute", "averaging", "evaluation", "handing over", "bubble"):
        times.add_column(name, justify="right", no_wrap=True)
    rest = _table("what the bubble waited for, and the most that tensors took")
    rest.add_column("bubble")
    rest.add_column("tensors", justify="right", no_wrap=True)
    for each, share in told:
        style = "bold" if share.compute == busiest else ""
        names = (escape(each.stage), escape(each.node))
        parts = (share.compute, share.averaging, share.evaluation, share.handoff, share.bubble)
        times.add_row(*names, *(f"{part:.1%}" for part in parts), style=style)
        rest.add_row(*names, waits_text(share) or "–", memory_text(each) or "–", style=style)
    return Group(times, "", rest)


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="dim", box=None, header_style="dim", pad_edge=False)
    table.add_column("stage", no_wrap=True)
    table.add_column("node", overflow="fold")
    return table


def memory_text(figures: StageFigures) -> str:
    """`1.37 MB (96% of plan)`."""
    memory = figures.memory
    if memory is None:
        return ""
    planned = f" ({memory.tensor_bytes / memory.planned_bytes:.0%} of plan)" if memory.planned_bytes > 0 else ""
    return size(memory.tensor_bytes) + planned


def waits_text(share: TimeShares) -> str:
    """`input 12 %, window 3 %`: the causes worth naming, largest first."""
    causes = sorted(share.waiting.items(), key=lambda item: -item[1])
    return ", ".join(f"{cause} {part:.0%}" for cause, part in causes if part >= _LEAST_SHOWN)
