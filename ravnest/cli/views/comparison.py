"""Shows several runs beside each other: what differs in their settings, their figures, and their losses.

In: a Comparison. Out: tables, or plain data for JSON. This module decides the words and the layout.
"""

from __future__ import annotations

from dataclasses import asdict

from rich.console import Console
from rich.markup import escape

from cluster_planner import format_rate
from ravnest.cli.views.tables import legend, titled_table
from ravnest.formatting import duration, json_value, loss_text
from ravnest.results.comparing import ComparedRun, Comparison

_NOTHING = "–"
_NARROWEST = 24
"""Columns that a key has at the least before it is broken."""


def show_comparison(found: Comparison, console: Console) -> None:
    """Prints the tables. Each run has a letter, because folders have long names."""
    letters = [chr(ord("A") + at) if at < 26 else str(at + 1) for at in range(len(found.runs))]
    # In a table of their own: beside the figures the usual name of a folder would be broken at 80 columns.
    runs, figures = titled_table("runs"), titled_table("what they have come to")
    runs.add_column("folder", overflow="fold")
    for name in ("state", "samples", "trained for", "samples/s", "held-out loss"):
        figures.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
    for letter, run in zip(letters, found.runs, strict=True):
        runs.add_row(letter, escape(str(run.path)))
        figures.add_row(letter, *_figures(run))
    console.print(runs)
    console.print()
    console.print(figures)
    console.print(legend("samples/s: the mean of all its training. held-out loss: the last one, and the lowest."))
    console.print()
    if not found.settings:
        console.print("Their settings do not differ.")
    else:
        settings = titled_table("settings that differ")
        for letter in letters:
            settings.add_column(letter, overflow="fold")
        widest = max(_NARROWEST, console.width // 2)
        for key, values in found.settings.items():
            shown = (_NOTHING if value is None else escape(str(value)) for value in values)
            settings.add_row(escape(_at_dots(key, widest)), *shown)
        console.print(settings)
    if found.losses:
        console.print()
        losses = titled_table("training loss", "samples")
        for letter in letters:
            losses.add_column(letter, justify="right", no_wrap=True)
        for samples, values in found.losses:
            losses.add_row(f"{samples:,}", *(loss_text(value) for value in values))
        console.print(losses)
        console.print(legend("The mean over the clusters, and over the samples since the row before."))


def _at_dots(key: str, width: int) -> str:
    """A key, which is broken behind dots alone where it is longer than that."""
    lines = [""]
    for part in key.replace(".", ".\n").split("\n"):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("  ")
        lines[-1] += part
    return "\n".join(lines)


def comparison_document(found: Comparison) -> object:
    """Returns the comparison as JSON has it, with the curves."""
    return json_value(asdict(found))


def _figures(run: ComparedRun) -> tuple[str, ...]:
    last = run.held_out[-1][1] if run.held_out else None
    rate = run.samples_per_s
    return (
        run.state,
        f"{run.samples:,}",
        duration(run.seconds),
        _NOTHING if rate is None else format_rate(rate),
        f"{loss_text(last)}, {loss_text(run.best_held_out)}",
    )
