"""Shows where each stage's time went, as shares of the steady state, and what its tensors took: one row a stage."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from ravnest.launch.report import StageFigures, TimeShares
from ravnest.words import size

_LEAST_SHOWN = 0.005


def stages_table(stages: Sequence[StageFigures]) -> Table:
    """The busiest stage, which bounds the others, stands out. A run too short for a steady state shows all of it."""
    steady = all(each.steady is not None for each in stages)
    shares = {each.stage: each.steady if steady else each.overall for each in stages}
    of = "steady state" if steady else "whole run, fill and drain included"
    table = Table(
        title=f"where the time went ({of})", title_justify="left", title_style="dim", box=None, header_style="dim"
    )
    table.pad_edge = False
    table.add_column("stage", no_wrap=True)
    table.add_column("node", no_wrap=True)
    for name in ("compute", "averaging", "evaluation", "handing over", "bubble"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("tensors", justify="right", no_wrap=True)
    table.add_column("waits for")
    busiest = max((share.compute for share in shares.values() if share is not None), default=0.0)
    for each in stages:
        share = shares[each.stage]
        if share is None:
            continue
        parts = (share.compute, share.averaging, share.evaluation, share.handoff, share.bubble)
        table.add_row(
            escape(each.stage),
            escape(each.node),
            *(f"{part:.1%}" for part in parts),
            memory_text(each),
            waits_text(share),
            style="bold" if share.compute == busiest else "",
        )
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
