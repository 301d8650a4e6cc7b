"""`ravnest plan --explain`: what each step of the search gained, and which changes would help most.

Decides the words, and how many changes are shown. Changes are tried on the plan as it is (cluster_planner/advice.py);
more memory only in fleets of up to MOST_NODES nodes, since it plans each cluster anew for each of its nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cluster_planner.advice import more_memory, suggestions
from cluster_planner.candidates import averaging_per_s
from cluster_planner.journal import Step
from cluster_planner.plan import Plan
from cluster_planner.predict import predict
from cluster_planner.spans import SpanCosts
from cluster_planner.suggestion import Suggestion
from cluster_planner.words import rate

MOST_NODES = 128
SHOWN = 5
IN_A_ROW = 8

COMPARED = (
    "Each by itself, with the same clusters; now {} samples/s, worth {}. Gains are of what the plan is worth, since"
    " hours change no samples/s, and rarer averaging and staleness make them count less."
)
NOTHING = "No single change of a machine, a link, memory, hours or what clusters wait for would gain 1 %."


def explanation(plan: Plan, steps: Sequence[Step]) -> dict[str, object]:
    """The same as JSON takes it."""
    return {
        "search": [asdict(step) for step in steps],
        "would_help": [
            {
                "change": one.words.rstrip(","),
                "samples_per_s": one.samples_per_s,
                "worth": one.worth,
                "cluster": None if one.cluster is None else plan.clusters[one.cluster].name,
            }
            for one in would_help(plan)
        ],
    }


def show_explanation(plan: Plan, steps: Sequence[Step], console: Console) -> None:
    """Print it for a person."""
    table = Table(box=None, header_style="dim", pad_edge=False, title="\nHow it was found", title_justify="left")
    table.add_column("phase", style="bold", no_wrap=True)
    table.add_column("what it did", overflow="fold")
    table.add_column("worth gained", justify="right")
    for phase, words, gained in told(steps):
        table.add_row(phase, escape(words), f"{gained:.4g}" if gained > 0 else "–")
    console.print(table)
    now = plan.predicted.objective
    changes = Table(box=None, header_style="dim", pad_edge=False, title="\nWhat would help most", title_justify="left")
    changes.add_column("one change", overflow="fold")
    changes.add_column("samples/s", justify="right")
    changes.add_column("worth", justify="right")
    changes.add_column("gain", justify="right")
    for one in would_help(plan):
        changes.add_row(
            escape(one.words.rstrip(",")), rate(one.samples_per_s), rate(one.worth), f"{one.worth / now - 1:+.0%}"
        )
    if changes.row_count:
        console.print(changes)
        console.print(COMPARED.format(rate(plan.predicted.samples_per_s), rate(now)), style="dim", highlight=False)
    else:
        console.print(f"\n{NOTHING}", highlight=False)


def told(steps: Sequence[Step]) -> list[tuple[str, str, float]]:
    """(phase, words, gained) of each step; of several of a phase in a row that gained nothing, beyond IN_A_ROW only how
    many there were.
    """
    rows: list[tuple[str, str, float]] = []
    for (phase, gained), run in groupby(steps, lambda step: (step.phase, step.gained > 0)):
        several = list(run)
        shown = several if gained else several[:IN_A_ROW]
        rows += [(phase, step.words, step.gained) for step in shown]
        if more := len(several) - len(shown):
            rows.append((phase, f"{more} more, none of them better", 0.0))
    return rows


def would_help(plan: Plan) -> list[Suggestion]:
    """The SHOWN changes that gain most."""
    spans = SpanCosts(plan.costs, plan.workload)
    forecast = predict(plan.fleet, spans, plan.clusters, plan.rings)
    found = suggestions(plan.fleet, spans, plan.clusters, plan.rings, forecast)
    if len(plan.fleet.nodes) <= MOST_NODES:
        load = averaging_per_s(len(plan.clusters), forecast.prediction.samples_per_s, plan.workload)
        found += more_memory(plan.fleet, spans, plan.clusters, forecast, load)
    return sorted(found, key=lambda one: -one.worth)[:SHOWN]
