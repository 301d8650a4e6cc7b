"""Shows how a plan was found and what would make it better, for `--explain`, on a terminal or as JSON.

In: a plan, the steps of the search, and what constraints cost. Out: two tables, or a part of a JSON document. Every
figure comes from cluster_planner.
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
    STALENESS_PHASE,
    ConstraintCosts,
    Plan,
    Step,
    format_rate,
    has_constraints,
    most_helpful_changes,
)
from ravnest.planning.searching_on import BUDGET_PHASE

IN_A_ROW = 8
NO_CONSTRAINTS = ConstraintCosts()

COMPARED = (
    "Each by itself, with the same clusters, or, without a constraint, planned anew; now {} samples/s, worth {}. Gains"
    " are of what the plan is worth: less than its samples/s for staleness, rarer averaging and absence."
)
NOTHING = (
    "With the same cuts, no single change of a machine, a link, memory, hours or what clusters wait for would gain 1%."
)
FAR = 0.5
"""A plan is far from the bound if it is worth less than this part of it."""


def of_constraints(plan: Plan) -> str | None:
    """Returns how to find out whether constraints keep the plan far from the bound.

    None where the plan is near the bound or has no constraints.
    """
    bound = plan.predicted.best_possible
    if bound is None or plan.predicted.objective >= FAR * bound or not has_constraints(plan.fleet.constraints):
        return None
    if len(plan.fleet.nodes) > MOST_NODES_TO_PLAN_ANEW:
        see = "leave one out of nodes.yaml and plan again"
    else:
        see = "`ravnest plan --explain` plans without each"
    return f"\nThe bound heeds no constraints of nodes.yaml: to see what they cost, {see}."


def of_staleness(steps: Sequence[Step]) -> str | None:
    """Returns which max_staleness the planner chose, and why; None where the job has a number."""
    said = [step.words for step in steps if step.phase == STALENESS_PHASE]
    return f"\nmax_staleness: {said[-1]}." if said else None


def of_budget(steps: Sequence[Step]) -> str | None:
    """Returns why a search with a budget ended before its time was over; None where it did not."""
    return next((f"\n--budget: {step.words}." for step in steps if step.phase == BUDGET_PHASE), None)


def explanation(
    plan: Plan, steps: Sequence[Step], most_round: float = math.inf, relaxed: ConstraintCosts = NO_CONSTRAINTS
) -> dict[str, object]:
    """Returns the steps of the search and the most helpful changes, for a JSON document.

    No larger `average_every` than `most_round` samples is advised. `relaxed` is what single constraints cost.
    """
    return {
        "search": [asdict(step) for step in steps],
        "would_help": [
            {
                "change": one.words.rstrip(","),
                "samples_per_s": one.samples_per_s,
                "worth": one.worth,
                "cluster": None if one.cluster is None else plan.clusters[one.cluster].name,
            }
            for one in most_helpful_changes(plan, most_round, relaxed.found)
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
    """Prints how the plan was found, and which changes would help most. See `explanation` for the arguments."""
    table = Table(box=None, header_style="dim", pad_edge=False, title="\nHow it was found", title_justify="left")
    table.add_column("phase", style="bold", no_wrap=True)
    table.add_column("what it did", overflow="fold")
    table.add_column("worth gained", justify="right")
    for phase, words, gained in told(steps):
        table.add_row(phase, escape(words), format_rate(gained) if gained > 0 else "–")
    console.print(table)
    now = plan.predicted.objective
    changes = Table(box=None, header_style="dim", pad_edge=False, title="\nWhat would help most", title_justify="left")
    changes.add_column("one change", overflow="fold")
    changes.add_column("samples/s", justify="right")
    changes.add_column("worth", justify="right")
    changes.add_column("gain", justify="right")
    for one in most_helpful_changes(plan, most_round, relaxed.found):
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
    """Returns the rows (phase, words, gained) for the steps of a search.

    Of steps of one phase in a row that gained nothing, only the first IN_A_ROW are listed; one row counts the others.
    """
    rows: list[tuple[str, str, float]] = []
    for (phase, gained), run in groupby(steps, lambda step: (step.phase, step.gained > 0)):
        several = list(run)
        shown = several if gained else several[:IN_A_ROW]
        rows += [(phase, step.words, step.gained) for step in shown]
        if more := len(several) - len(shown):
            rows.append((phase, f"{more} more, none of them better", 0.0))
    return rows
