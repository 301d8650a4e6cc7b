"""Chooses max_staleness: a plan is made with FIRST, others are judged from it, and the best one is searched for.

A larger bound admits more micro-batches, so that longer pipelines wait less for their round trip. But the gradients get
older, which the objective counts at a cost that was measured (decision 217), and each further update is one more
version of the weights in memory. The objective weighs all of it, so it decides. From the best plan so far, plans with
other bounds are found anew in a tenth of the time of a search (planned_anew.py): with larger ones, until they gain
nothing, and with 0 where none gained. Only where one gains is a whole search made once more, with it.

In: how a plan is made for a workload. Out: the plan that is worth most. The number is in its workload.
"""

from collections.abc import Callable
from dataclasses import replace

from cluster_planner.errors import NoFeasiblePlan
from cluster_planner.formatting import format_rate
from cluster_planner.inputs.model_costs import MOST_IN_FLIGHT, Workload
from cluster_planner.plan import Plan
from cluster_planner.search.planned_anew import planned_anew
from cluster_planner.search.steps import Step, Tell

FIRST = 1

LARGER = (2, 3, 4, 6, 8, 12, 16, 24, 32)

WORTHWHILE = 0.01
"""Another bound has to make the plan worth more by this part of it: it is not known better what staleness costs."""

PATIENCE = 2
"""After so many larger bounds in a row that gain nothing, no larger one is judged."""

STALENESS_PHASE = "max_staleness"
"""The phase of a search's steps in which the bound is chosen; the last step says which it is, and why."""


def with_best_staleness(planned: Callable[[Workload], Plan], work: Workload, tell: Tell) -> Plan:
    """Return the plan that is worth most, of those with any max_staleness; that of `work` does not count.

    `planned` makes a plan. Raises what it raises where no plan is feasible with FIRST, and none with 0.
    """
    try:
        first = planned(replace(work, max_staleness=FIRST))
    except NoFeasiblePlan as error:
        return _in_less_memory(planned, work, tell, error)
    value, judged = _judged(first)
    best = first
    if value != FIRST:
        tell(Step(STALENESS_PHASE, f"searching once more, with {value}", first.predicted.objective, 0.0))
        best = max(first, planned(replace(work, max_staleness=value)), key=lambda one: one.predicted.objective)
    chosen, worth = best.workload.max_staleness, best.predicted.objective
    others = ", ".join(
        f"{one}: {format_rate(judged[one])}" for one in sorted(judged) if one != chosen and judged[one] > 0
    )
    words = f"{chosen} is chosen, worth {format_rate(worth)}" + (f"; others about ({others})" if others else "")
    tell(Step(STALENESS_PHASE, words, worth, worth - first.predicted.objective))
    return best


def _in_less_memory(
    planned: Callable[[Workload], Plan], work: Workload, tell: Tell, infeasible: NoFeasiblePlan
) -> Plan:
    """Return the plan with 0, which keeps one version of the weights. Raises `infeasible` where there is none."""
    try:
        plan = planned(replace(work, max_staleness=0))
    except NoFeasiblePlan:
        raise infeasible from None
    worth = plan.predicted.objective
    tell(
        Step(
            STALENESS_PHASE,
            f"0 is chosen, worth {format_rate(worth)}: with {FIRST}, memory does not suffice",
            worth,
            worth,
        )
    )
    return plan


def _judged(first: Plan) -> tuple[int, dict[int, float]]:
    """Return the best max_staleness, and for those that were judged, about what a plan with it is worth; 0 where none
    was found.
    """
    judged, best, clusters = {FIRST: first.predicted.objective}, FIRST, first.clusters

    def gains(value: int) -> bool:
        nonlocal best, clusters
        work = replace(first.workload, max_staleness=value)
        made = planned_anew(clusters, first.fleet, first.costs, work, first.least_stages, first.seed)
        judged[value] = 0.0 if made is None else made.objective
        if made is None or made.objective <= judged[best] * (1 + WORTHWHILE):
            return False
        best, clusters = value, made.clusters
        return True

    idle = 0
    for value in LARGER:
        if idle == PATIENCE or (value + 1) * first.workload.update_every > MOST_IN_FLIGHT:
            break
        idle = 0 if gains(value) else idle + 1
    if best == FIRST:
        gains(0)
    return best, judged
