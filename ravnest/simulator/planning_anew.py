"""A simulated run that goes on by another plan, as soon as that pays (recovery/replanning.py).

In: how the run stands. Out: the plan to stop for. It is made in no time, where a driver has it made beside the run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from cluster_planner import NoFeasiblePlan, Plan
from ravnest.recovery import BetterPlan, PlanningAnew, PlanWanted, Situation

Planner = Callable[[Plan, Collection[str]], Plan]
"""Returns a plan for those nodes of another one that are there. Raises NoFeasiblePlan."""


def better_plan(planning: PlanningAnew, planner: Planner, at: Situation) -> BetterPlan | None:
    """Return the plan for which the run is to be stopped now; None where none pays."""
    said = planning.consider(at)
    while isinstance(said, PlanWanted):
        try:
            planning.found(said, planner(said.plan, said.nodes))
        except NoFeasiblePlan:
            planning.found(said, None)
        said = planning.consider(at)
    return said
