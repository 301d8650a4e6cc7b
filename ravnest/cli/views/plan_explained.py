"""`ravnest plan --explain`: what each step of the search gained, and which changes would help most.

Decides the words, and how many changes are shown. Changes are tried on the plan as it is
(cluster_planner/advice/single_changes.py);
more memory only in fleets of up to MOST_NODES nodes, since it plans each cluster anew for each of its nodes. What
constraints cost is found by planning anew (cluster_planner/planner.py); a plan that is FAR from the
bound
points to it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cluster_planner import (
    MOST_NODES_TO_PLAN_ANEW,
    ConstraintCosts,
    Plan,
    SpanCosts,
    Step,
    Suggestion,
    averaging_per_s,
    format_rate,
    has_constraints,
    more_memory,
    predict,
    suggestions,
)

MOST_NODES = 128
SHOWN = 5
IN_A_ROW = 8
NO_CONSTRAINTS = ConstraintCosts()

COMPARED = (
    "Each by itself, with the same clusters, or, without a constraint, planned anew; now {} samples/s, worth {}. Gains"
    " are of what the plan is worth, since hours change no samples/s, and rarer averaging and staleness make them count"
    " less."
)
NOTHING = (
    "With the same cuts, no single change of a machine, a link, memory, hours or what clusters wait for would gain 1 %."
)
FAR = 0.5
"""A plan that is worth less than this part of the bound is far from it."""


def of_constraints(plan: Plan) -> str | None:
    """Where to see whether constraints keep a plan far from the bound; None where they cannot, or it is near."""
    bound = plan.predicted.best_possible
    if bound is None or plan.predicted.objective >= FAR * bound or not has_constraints(plan.fleet.constraints):
        return None
    if len(plan.fleet.nodes) > MOST_NODES_TO_PLAN_ANEW:
        see = "leave one out of nodes.yaml and plan again"
    else:
        see = "`ravnest plan --explain` plans without each"
    return f"\nThe bound heeds no constraints of nodes.yaml: to see what they cost, {see}."


def explanation(
    plan: Plan, steps: Sequence[Step], most_round: float = math.inf, relaxed: ConstraintCosts = NO_CONSTRAINTS
) -> dict[str, object]:
    """The same as JSON takes it. `most_round`: no larger average_every is advised, in samples."""
    return {
        "search": [asdict(step) for step in steps],
        "would_help": [
            {
                "change": one.words.rstrip(","),
                "samples_per_s": one.samples_per_s,
                "worth": one.worth,
                "cluster": None if one.cluster is None else plan.clusters[one.cluster].name,
            }
            for one in would_help(plan, most_round, relaxed)
        ],
        "untried": relaxed.untried,
    }


def show_explanation(
    plan: Plan,
    steps: Sequence[Step],
    console: Console,
    most_round: float = math.inf,
    relaxed: ConstraintCosts = NO_CONSTRAINTS,
) -> None:
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
    for one in would_help(plan, most_round, relaxed):
        changes.add_row(
            escape(one.words.rstrip(",")),
            format_rate(one.samples_per_s),
            format_rate(one.worth),
            f"{one.worth / now - 1:+.0%}",
        )
    if changes.row_count:
        console.print(changes)
        console.print(
            COMPARED.format(format_rate(plan.predicted.samples_per_s), format_rate(now)), style="dim", highlight=False
        )
    else:
        console.print(f"\n{NOTHING}", highlight=False)
    if relaxed.untried is not None:
        console.print(relaxed.untried, style="dim", highlight=False)


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


def would_help(plan: Plan, most_round: float = math.inf, relaxed: ConstraintCosts = NO_CONSTRAINTS) -> list[Suggestion]:
    """The SHOWN changes that gain most, and as many constraints that cost most."""
    spans = SpanCosts(plan.costs, plan.workload)
    forecast = predict(plan.fleet, spans, plan.clusters, plan.rings)
    found = suggestions(plan.fleet, spans, plan.clusters, plan.rings, forecast, most_round)
    if len(plan.fleet.nodes) <= MOST_NODES:
        load = averaging_per_s(len(plan.clusters), forecast.prediction.samples_per_s, plan.workload)
        found += more_memory(plan.fleet, spans, plan.clusters, forecast, load)
    found = sorted(found, key=lambda one: -one.worth)[:SHOWN]
    return sorted((*found, *relaxed.found[:SHOWN]), key=lambda one: -one.worth)
