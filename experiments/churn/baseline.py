"""What the best plan for the nodes alive at each moment would make, if planning and changing took no time. Pure.

At every change of the nodes that are there the fleet is planned anew, by the planner and for these nodes alone, and the
samples/s that it predicts count from that moment to the next change. Nothing is lost, nothing starts, nothing is
handed over. It is what a run is measured against. The planner prefers what is worth most, not what makes the most
samples/s, so a run of other clusters may make a little more for a while.
"""

from collections.abc import Sequence
from itertools import pairwise

from cluster_planner import NoFeasiblePlan, Plan
from experiments.churn.fleets import Planner
from ravnest.simulator import NodeChange
from ravnest.simulator.presence import Presence, absent_at_first


def best_rates(
    plan: Plan, changes: Sequence[NodeChange], seconds: float, planner: Planner
) -> list[tuple[float, float, int]]:
    """Return from when on which samples/s could be made, and by how many nodes, until `seconds`."""
    presence = Presence(plan.fleet.names, absent_at_first(changes))
    found: list[tuple[float, float, int]] = []
    moments = sorted({0.0, *(change.at_s for change in changes if change.at_s < seconds)})
    for at_s in moments:
        for change in changes:
            if change.at_s == at_s:
                presence.take(change)
        alive = presence.alive(at_s)
        try:
            rate = planner(plan, alive).predicted.samples_per_s
        except NoFeasiblePlan:
            rate = 0.0
        if not found or found[-1][1:] != (rate, len(alive)):
            found.append((at_s, rate, len(alive)))
    return found


def best_samples(rates: Sequence[tuple[float, float, int]], seconds: float) -> float:
    """Return the samples that these rates make until `seconds`."""
    ends = [*rates, (seconds, 0.0, 0)]
    return sum(rate * (until_s - at_s) for (at_s, rate, _), (until_s, _, _) in pairwise(ends))
