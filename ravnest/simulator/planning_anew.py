"""Somebody who stops a simulated run, plans again and resumes it, as soon as that pays (recovery/replanning.py).

In: the plan as it is, the nodes that are there, and the clusters that train or begin to. Out: the plan to stop for. The
best plan for a set of nodes is made once, as long as the set stays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from cluster_planner import NoFeasiblePlan, Plan, samples_per_s
from ravnest.recovery import Replanning, lasts_s

Planner = Callable[[Plan, Collection[str]], Plan]
"""Returns a plan for those nodes of another one that are there. Raises NoFeasiblePlan."""


class PlanningAnew:
    """Considers from time to time whether another plan pays."""

    def __init__(self, planner: Planner, pause_s: float) -> None:
        """`pause_s`: for how long nobody trains when a run is planned anew."""
        self._planner = planner
        self._replanning = Replanning(pause_s)
        self._best: tuple[frozenset[str], Plan | None, float] = (frozenset(), None, 0.0)
        """For these nodes: the best plan, and its samples/s."""

    def better(
        self, plan: Plan, nodes: frozenset[str], making: Collection[str] | None, now_s: float, rest_s: float
    ) -> Plan | None:
        """Return the plan for which the run is to be stopped now; None where none pays.

        `making`: the clusters that train or begin to, and stay; None: what becomes of some of them is not known yet.
        `rest_s`: for how long the run goes on.
        """
        if nodes != self._best[0]:
            try:
                best = self._planner(plan, nodes)
                self._best = nodes, best, best.predicted.samples_per_s
            except NoFeasiblePlan:
                self._best = nodes, None, 0.0
        if making is None:
            return None
        rate = sum(samples_per_s(plan, making).values())
        lasting_s = lasts_s(plan.fleet.node(name) for name in nodes)
        pays = self._replanning.pays(rate, self._best[2], now_s, rest_s, lasting_s)
        return self._best[1] if pays else None
