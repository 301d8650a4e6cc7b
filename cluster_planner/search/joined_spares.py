"""Each kind of spare tried in the clusters nearest to it, so that it can be said of each whether a cluster gains.

Hill climbing (whole_plans.py) draws its changes, so of some spares it never tried what they would do. Here each joins
each place of the nearest clusters, and founds a cluster with the spares nearest to it, or one like a near cluster. In:
clusters. Out: clusters that are worth as much or more, and the spares that were tried for nothing.
"""

import itertools
from collections.abc import Iterator, Sequence

from cluster_planner.inputs.fleet import Fleet
from cluster_planner.plan import Cluster
from cluster_planner.predict.plan_worths import PlanWorths
from cluster_planner.search.small_moves import with_small_moves
from cluster_planner.search.whole_plans import MOST_FOUNDERS, Clusters, WholePlans

NEAR = 3
"""Each kind of spare is tried in so many clusters, the nearest."""

LOOSELY = 0.02
"""A plan is judged exactly unless its rough worth is lower by this part: in long pipelines that wait for their round
trip one stage more may lower the rough worth and raise the exact one.
"""

MOVES, MOVES_TIMES_NODES = 400, 26_000
"""So many small moves are tried, at most, after a spare has been taken in, or the second divided by the nodes."""


def with_spares(
    plans: WholePlans, worths: PlanWorths, fleet: Fleet, clusters: Sequence[Cluster], tries: int
) -> tuple[Clusters, frozenset[str]]:
    """Return the plan with every spare that makes it worth more, and the spares that were tried and do not.

    Spares that are equal in all that counts are tried once. At most `tries` plans with a further spare are compared.
    """
    now: Clusters = tuple(clusters)
    worth, rough = worths.of(now), worths.of(now, roughly=True)
    kinds = _kinds(fleet, plans.spares(now))
    useless, moves = set[str](), min(MOVES, MOVES_TIMES_NODES // len(fleet.nodes))
    while kinds:
        alike = kinds.pop(0)
        better: tuple[float, float] | None = None
        for changed in _joined_by(plans, fleet, now, alike[0]):
            if (tries := tries - 1) < 0:
                return now, frozenset(useless)
            if (better := plans.better(changed, (worth, rough), slack=LOOSELY)) is not None:
                now = with_small_moves(plans, worths, changed, moves)
                worth, rough = worths.of(now), worths.of(now, roughly=True)
                break
        if better is None:
            useless.update(alike)
        else:
            kinds, useless = _kinds(fleet, plans.spares(now)), set()
    return now, frozenset(useless)


def _kinds(fleet: Fleet, spares: Sequence[str]) -> list[list[str]]:
    """Return the spares, those together that differ in nothing that counts, the fastest first."""
    linked = {name for link in fleet.links for name in (link.a, link.b)}
    kinds: dict[tuple[object, ...], list[str]] = {}
    for name in spares:
        node = fleet.node(name)
        more = (node.host_room_bytes, node.up_bytes_per_s, node.down_bytes_per_s)
        key = (node.flops_per_s, node.room_bytes, *more, node.region, node.host, node.hours, node.mtbf_s)
        alone = name in linked or fleet.rules.are_any
        kinds.setdefault((*key, name if alone else None), []).append(name)
    return sorted(kinds.values(), key=lambda alike: (-fleet.node(alike[0]).flops_per_s, alike[0]))


def _joined_by(plans: WholePlans, fleet: Fleet, now: Clusters, name: str) -> Iterator[Clusters]:
    """Yield the plans in which a spare runs a stage: at each place of the nearest clusters, and of new ones."""
    number_of = fleet.arrays.number_of

    def latency_s(names: Sequence[str]) -> float:
        return float(fleet.arrays.between([number_of[name]], [number_of[one] for one in names])[0].mean())

    order = sorted(range(len(now)), key=lambda i: (latency_s([stage.node for stage in now[i].stages]), i))
    for i in order[:NEAR]:
        names = [stage.node for stage in now[i].stages]
        for place in range(len(names) + 1):
            changed = plans.replaced(now, {i: plans.made.cut_anew([*names[:place], name, *names[place:]])})
            if changed is not None:
                yield changed
    spares = plans.spares(now)
    for i, same_cuts in itertools.product(order[:NEAR], (True, False)):
        cluster = plans.made.like(now[i], spares, same_cuts=same_cuts)
        if cluster is not None and any(stage.node == name for stage in cluster.stages):
            yield (*now, cluster)
    near = sorted(spares, key=lambda one: (one != name, latency_s([one]), one))
    for count in range(plans.made.least, min(len(near), MOST_FOUNDERS) + 1):
        if (cluster := plans.made.planned(near[:count])) is not None:
            yield (*now, cluster)
