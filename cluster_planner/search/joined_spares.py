"""Each kind of spare tried in the clusters nearest to it, so that it can be said of each whether a cluster gains.

Hill climbing (whole_plans.py) draws its changes, so of some spares it never tried what they would do. Here each joins
each place of the nearest clusters, and founds a cluster with the spares nearest to it, or one like a near cluster. In:
clusters. Out: clusters that are worth as much or more, and the spares that were tried for nothing.
"""

import itertools
from collections.abc import Iterator, Sequence

from cluster_planner.inputs.fleet import Fleet, Node
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
    kinds, compared = kinds_of(fleet, plans.spares(now)), set[Clusters]()
    useless, moves = set[str](), min(MOVES, MOVES_TIMES_NODES // len(fleet.nodes))
    while kinds:
        alike = kinds.pop(0)
        better: tuple[float, float] | None = None
        for changed in _joined_by(plans, fleet, now, alike[0]):
            if changed in compared:  # a new cluster of several spares is found for each of them
                continue
            compared.add(changed)
            if (tries := tries - 1) < 0:
                return now, frozenset(useless)
            if (better := plans.better(changed, (worth, rough), slack=LOOSELY)) is not None:
                now = with_small_moves(plans, worths, changed, moves)
                worth, rough = worths.of(now), worths.of(now, roughly=True)
                break
        if better is None:
            useless.update(alike)
        else:
            kinds, compared, useless = kinds_of(fleet, plans.spares(now)), set(), set()
    return now, frozenset(useless)


def kinds_of(fleet: Fleet, spares: Sequence[str]) -> list[list[str]]:
    """Return the spares, those together that differ in nothing that counts, the fastest first.

    Hosts of which no node runs a stage are alike where their nodes are.
    """
    linked, idle = {name for link in fleet.links for name in (link.a, link.b)}, set(spares)
    sides = [side for pair in fleet.constraints.sides({n.name: n.region for n in fleet.nodes}) for side in pair]
    mates: dict[str | None, list[Node]] = {}
    for node in fleet.nodes:
        mates.setdefault(node.host, []).append(node)

    def own(node: Node) -> tuple[object, ...]:
        more = (node.host_room_bytes, node.up_bytes_per_s, node.down_bytes_per_s, node.region, node.hours, node.mtbf_s)
        kept_apart = tuple(node.name in side for side in sides)
        return (node.flops_per_s, node.room_bytes, *more, kept_apart, node.name if node.name in linked else None)

    kinds: dict[object, list[str]] = {}
    for name in spares:
        node, host = fleet.node(name), fleet.node(name).host
        beside: object = None
        if host is not None:
            all_idle = all(mate.name in idle for mate in mates[host])
            beside = tuple(sorted(repr(own(mate)) for mate in mates[host])) if all_idle else host
        kinds.setdefault((own(node), beside), []).append(name)
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
