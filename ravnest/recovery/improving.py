"""Whether a cluster that trains is better planned anew: nodes have come, or one of its own stays slow. Pure.

In: the plan, the clusters that train, the spare nodes, by how much nodes are slower than planned, and the rest of the
run. Out: the cluster with other nodes and cuts that gains the most samples until the run ends, or none. While it
changes it makes nothing, so that with rates r before and r' after

    gained = (R' − R) · (rest − change) − r · change        R: of all clusters together, r: of this one
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cluster_planner import Cluster, Plan, cluster_at, samples_per_s
from ravnest.recovery.placing import FURTHER, WORTHWHILE, placement
from ravnest.recovery.replanning import slowed


@dataclass(frozen=True)
class Improvement:
    """The cluster as it would be better, and why."""

    made: Cluster
    reason: str
    more_per_s: float
    """The samples/s that the fleet makes more."""
    gained: float
    """The samples that it makes more in the rest of the run; infinite where that has no known end."""


def improvement(
    plan: Plan, training: Collection[str], spare: Collection[str], slow: Mapping[str, float], rest_s: float
) -> Improvement | None:
    """Return the best change of one cluster; None where none pays.

    `slow`: by node, how many times as long as planned it takes.
    """
    fleet = slowed(plan.fleet, slow)
    now = samples_per_s(plan, training, fleet)
    best: Improvement | None = None
    for name in training:
        before = plan.cluster(name)
        own = [stage.node for stage in before.stages]
        if not spare and not slow.keys() & set(own):
            continue
        made = cluster_at(plan, name, own, sorted(spare), fleet)
        if made is None or made == before:
            continue
        found = placement(plan, made, set(training) - {name}, fleet)
        if found.gained_per_s < WORTHWHILE * now[name]:
            continue
        more = sum(samples_per_s(found.plan, training, fleet).values()) - sum(now.values())
        gained = math.inf
        if math.isfinite(rest_s):
            gained = more * max(0.0, rest_s - found.change_s) - now[name] * min(rest_s, found.change_s)
        if more > 0 and gained >= plan.workload.micro_batch * plan.workload.update_every:
            one = Improvement(made, _reason(own, made, slow, now[name], found.gained_per_s), more, gained)
            best = one if best is None or more > best.more_per_s else best
    return best


def addition(
    plan: Plan, name: str, training: Collection[str], spare: Collection[str], rest_s: float
) -> Improvement | None:
    """Return a further cluster of this name, made of spare nodes; None where none can be made, or none pays."""
    made = cluster_at(plan, name, [], sorted(spare)) if spare else None
    if made is None:
        return None
    found = placement(plan, made, training)
    now = sum(samples_per_s(plan, training).values())
    more = sum(samples_per_s(found.plan, {*training, name}).values()) - now
    gained = more * (rest_s - found.change_s)
    if more < FURTHER * now or gained < plan.workload.micro_batch * plan.workload.update_every:
        return None
    nodes = ", ".join(repr(stage.node) for stage in made.stages)
    return Improvement(made, f"{nodes} came: {now + more:.3g} samples/s instead of {now:.3g}", more, gained)


def _reason(own: Collection[str], made: Cluster, slow: Mapping[str, float], before: float, after: float) -> str:
    nodes = [stage.node for stage in made.stages]
    came, gone = [name for name in nodes if name not in own], [name for name in own if name not in nodes]
    said = [f"{name!r} takes {slow[name]:.1f} times as long as planned" for name in own if name in slow]
    said += [f"with {', '.join(map(repr, came))}"] if came else []
    said += [f"without {', '.join(map(repr, gone))}"] if gone else []
    return f"{', '.join(said)}{': ' if said else ''}{after:.3g} samples/s instead of {before:.3g}"
