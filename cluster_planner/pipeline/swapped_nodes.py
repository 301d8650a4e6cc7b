"""A plan whose nodes have changed places by hand.

In: a plan, and pairs of nodes; either of a pair may be a spare. Out: the plan that this makes. The cuts stay. Windows,
rings and prediction are made anew, and memory and constraints are checked as those of a plan that is read from a file.
"""

from collections.abc import Sequence
from dataclasses import replace

from cluster_planner.errors import InvalidInput
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.best_pipeline import timed
from cluster_planner.plan import Cluster, Plan, Ring, Spare, require_memory, validate
from cluster_planner.predict.prediction import predict
from cluster_planner.rings import make_rings

MOST_SWAPS = 1_000


def with_swapped_nodes(plan: Plan, swaps: Sequence[tuple[str, str]]) -> Plan:
    """Return the plan after these exchanges, one after the other.

    Raises InvalidInput for a node that the plan lacks, one without the memory, and a constraint that is broken.
    """
    if not swaps:
        return plan
    if len(swaps) > MOST_SWAPS:
        raise InvalidInput(f"there are {len(swaps)} exchanges, and at most {MOST_SWAPS} are made", key="swaps")
    node_at = {name: name for name in plan.fleet.names}
    """By node: who is in its place."""
    for pair in swaps:
        for name in pair:
            if name not in node_at:
                raise InvalidInput(f"the plan has no node {name!r}", key="swaps")
        one, other = (next(place for place, node in node_at.items() if node == name) for name in pair)
        node_at[one], node_at[other] = node_at[other], node_at[one]
    spans = SpanCosts(plan.costs, plan.workload)
    clusters = tuple(_moved(plan, spans, cluster, node_at) for cluster in plan.clusters)
    rings = _same_segments(plan.rings, make_rings(plan.fleet, spans, clusters))
    running = {stage.node for cluster in clusters for stage in cluster.stages}
    before = {spare.node: spare for spare in plan.spares}
    spares = tuple(
        before.get(name, Spare(name, "taken out by hand")) for name in plan.fleet.names if name not in running
    )
    predicted = predict(plan.fleet, spans, clusters, rings, spares).prediction
    made = replace(
        plan,
        clusters=clusters,
        rings=rings,
        spares=spares,
        predicted=replace(predicted, best_possible=plan.predicted.best_possible),
    )
    require_memory(made)
    validate(made)
    return made


def _same_segments(before: Sequence[Ring], now: Sequence[Ring]) -> tuple[Ring, ...]:
    """Return the rings of now in the segments of before, of which there may be more: cuts are the same."""
    return tuple(replace(_holding(ring.units, now), units=ring.units) for ring in before)


def _holding(units: tuple[int, int], rings: Sequence[Ring]) -> Ring:
    return next(ring for ring in rings if ring.units[0] <= units[0] and units[1] <= ring.units[1])


def _moved(plan: Plan, spans: SpanCosts, cluster: Cluster, node_at: dict[str, str]) -> Cluster:
    stages = tuple(replace(stage, node=node_at[stage.node]) for stage in cluster.stages)
    if stages == cluster.stages:
        return cluster
    return replace(cluster, stages=stages, window=timed(plan.fleet, spans, stages, 0.0).window)
