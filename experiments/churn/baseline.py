"""What the best plans would make: for the nodes alive at each moment, and for those that anybody can know of. Pure.

At every change the fleet is planned anew, by the planner and for these nodes alone, and the samples/s that it predicts
count from that moment to the next change. Nothing is lost, nothing is handed over, planning takes no time. The planner
prefers what is worth most, not what makes the most samples/s, so a run of other clusters may make a little more for a
while.

`best_rates` plans for the nodes that are alive, in the very moment. No system can do that: it does not know that a node
has gone before its silence is noticed, and what comes has to start a process. `knowable_rates` allows for these two
times, and for nothing else: a node counts `start_s` after it came, and a cluster with a node that has gone makes
nothing until that is noticed.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from cluster_planner import NoFeasiblePlan, Plan
from experiments.churn.fleets import Planner
from ravnest.simulator import NodeChange
from ravnest.simulator.presence import Presence, absent_at_first

Rates = Sequence[tuple[float, float, int]]
"""From when on how many samples/s could be made, and by how many nodes."""


def best_rates(plan: Plan, changes: Sequence[NodeChange], seconds: float, planner: Planner) -> Rates:
    """Return the rates of the best plans for the nodes that are alive, until `seconds`."""
    presence = Presence(plan.fleet.names, absent_at_first(changes))
    found: list[tuple[float, float, int]] = []
    moments = sorted({0.0, *(change.at_s for change in changes if change.at_s < seconds)})
    for at_s in moments:
        for change in changes:
            if change.at_s == at_s:
                presence.take(change)
        alive = presence.alive(at_s)
        rate = _rate(plan, alive, alive, planner)
        if not found or found[-1][1:] != (rate, len(alive)):
            found.append((at_s, rate, len(alive)))
    return found


def knowable_rates(
    plan: Plan, changes: Sequence[NodeChange], seconds: float, planner: Planner, start_s: float
) -> Rates:
    """Return the rates of the best plans for the nodes that are known to be there and have started, until `seconds`.

    Those that are there from 0 s on have started.
    """
    stays = _stays(plan, changes)
    known = {
        node: [(from_s + start_s if from_s else 0.0, until_s + silent_s) for from_s, until_s, silent_s in each]
        for node, each in stays.items()
    }
    alive = {node: [(from_s, until_s) for from_s, until_s, _ in each] for node, each in stays.items()}
    ends = {at_s for of in (known, alive) for each in of.values() for span in each for at_s in span}
    found: list[tuple[float, float, int]] = []
    for at_s in sorted({0.0, *(end_s for end_s in ends if end_s < seconds)}):
        there = _at(alive, at_s)
        rate = _rate(plan, _at(known, at_s), there, planner)
        if not found or found[-1][1:] != (rate, len(there)):
            found.append((at_s, rate, len(there)))
    return found


def samples_of(rates: Rates, seconds: float) -> float:
    """Return the samples that these rates make until `seconds`."""
    ends = [*rates, (seconds, 0.0, 0)]
    return sum(rate * (until_s - at_s) for (at_s, rate, _), (until_s, _, _) in pairwise(ends))


def _rate(plan: Plan, known: Collection[str], alive: Collection[str], planner: Planner) -> float:
    """The samples/s of those clusters of the best plan for the nodes `known` of which all nodes are alive."""
    try:
        best = planner(plan, known)
    except NoFeasiblePlan:
        return 0.0
    if set(known) <= set(alive):
        return best.predicted.samples_per_s
    whole = zip(best.clusters, best.predicted.clusters, strict=True)
    return sum(each.samples_per_s for cluster, each in whole if {stage.node for stage in cluster.stages} <= set(alive))


def _stays(plan: Plan, changes: Sequence[NodeChange]) -> dict[str, list[tuple[float, float, float]]]:
    """By node: from when until when it was there, and for how long nobody knew that it had gone."""
    absent = absent_at_first(changes)
    since_s = {name: 0.0 for name in plan.fleet.names if name not in absent}
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in plan.fleet.names}
    for change in sorted(changes, key=lambda each: each.at_s):
        if change.kind == "back":
            since_s.setdefault(change.node, change.at_s)
        elif change.kind == "gone" and change.node in since_s:
            found[change.node].append((since_s.pop(change.node), change.at_s, change.noticed_after_s))
    for name, from_s in since_s.items():
        found[name].append((from_s, math.inf, 0.0))
    return found


def _at(spans: Mapping[str, Sequence[tuple[float, float]]], at_s: float) -> set[str]:
    return {node for node, each in spans.items() if any(from_s <= at_s < until_s for from_s, until_s in each)}
