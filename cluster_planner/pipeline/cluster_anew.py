"""One cluster of a plan made anew from other nodes while the others go on: its stages, its rings, what it costs.

A run averages segment by segment, so the segments stay, even two between which no cluster has a cut any more. A stage
of the new cluster holds one or more whole segments: `cluster_at` is the search of best_pipeline.py with cuts nowhere
else. The rings keep their segments too, and name the stage of the cluster that holds each now.

The stages get the anchor and the optimizer's state of each segment from the member of its ring that has the fastest
uplink, so that handing over takes at least

    max( max over senders of bytes / uplink, max over receivers of bytes / downlink )
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from cluster_planner.inputs.constraints import LAST
from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.best_pipeline import plan_pipeline
from cluster_planner.plan import Cluster, Plan, Spare, holder
from cluster_planner.predict.prediction import predict

MOST_NODES = 12
"""A cluster is made anew from its own nodes, and from the fastest others up to so many in all."""


def cluster_at(
    plan: Plan, name: str, own: Sequence[str], others: Sequence[str], fleet: Fleet | None = None
) -> Cluster | None:
    """Return the most valuable cluster of these nodes whose stages hold whole segments of the plan; None where nothing
    fits in memory. One node may hold all of the model.

    `own`: nodes that are considered in any case. `others`: those of which the fastest are. `fleet`: what the nodes can
    do, where that is not what the plan says.
    """
    fleet = _without_pins(plan.fleet if fleet is None else fleet, {*own, *others})
    number_of, group = fleet.arrays.number_of, list(own)
    for other in sorted(others, key=lambda each: -fleet.node(each).flops_per_s):
        if len(group) < MOST_NODES and fleet.rules.allows([number_of[each] for each in (*group, other)]):
            group.append(other)
    if not group:
        return None
    edges = (0, *(ring.units[1] for ring in plan.rings))
    spans = SpanCosts(plan.costs, plan.workload, edges=edges)
    found = plan_pipeline(fleet, spans, group, 0.0, 1)
    return None if found is None else Cluster(name, found.window, found.stages)


def forbidden(fleet: Fleet, at: Mapping[str, int], stages: int) -> str | None:
    """Return why constraints do not let these nodes be in one cluster of so many stages, after "the cluster", or None
    where they do. What is demanded of other nodes, which may be gone, does not count.

    `at`: by node, the stage that it runs.
    """
    fleet = _without_pins(fleet, at)
    if not fleet.rules.are_any:
        return None
    numbers = {name: number for number, name in enumerate(fleet.names)}
    for node, index in at.items():
        wanted = fleet.rules.stage_of.get(node, index)
        if index != (stages - 1 if wanted == LAST else wanted):
            return f"has {node!r} as stage {index}, and it is pinned to stage {wanted}"
    return fleet.rules.broken([numbers[node] for node in at])


def _without_pins(fleet: Fleet, kept: Collection[str]) -> Fleet:
    """The fleet without what is demanded of nodes that cannot take part."""
    rules = fleet.constraints
    pins = tuple(pin for pin in rules.pins if pin.node in kept)
    if pins == rules.pins:
        return fleet
    return replace(fleet, constraints=replace(rules, pins=pins, min_clusters=1))


def with_cluster(plan: Plan, cluster: Cluster, reason: str) -> Plan:
    """Return the plan with this cluster in the place of the one of its name, or beside all, for the same segments.

    Nodes that run no stage then are spares, for this `reason` where they were none before. The samples/s that were
    predicted of clusters that were there stay: their shares of the data follow from them.
    """
    spans = [stage.units for stage in cluster.stages]
    if any(each.name == cluster.name for each in plan.clusters):
        clusters = tuple(cluster if each.name == cluster.name else each for each in plan.clusters)
        members = [
            tuple((name, holder(spans, ring.units) if name == cluster.name else index) for name, index in ring.members)
            for ring in plan.rings
        ]
        rings = tuple(replace(ring, members=each) for ring, each in zip(plan.rings, members, strict=True))
        predicted = plan.predicted
        if len(cluster.stages) != len(plan.cluster(cluster.name).stages):
            forecast = predict(plan.fleet, SpanCosts(plan.costs, plan.workload), clusters, rings).prediction
            predictions = tuple(
                replace(new, samples_per_s=old.samples_per_s) if len(new.stages) != len(old.stages) else old
                for new, old in zip(forecast.clusters, predicted.clusters, strict=True)
            )
            predicted = replace(predicted, clusters=predictions)
    else:
        clusters = (*plan.clusters, cluster)
        rings = tuple(
            replace(ring, members=(*ring.members, (cluster.name, holder(spans, ring.units)))) for ring in plan.rings
        )
        forecast = predict(plan.fleet, SpanCosts(plan.costs, plan.workload), clusters, rings).prediction
        predicted = replace(plan.predicted, clusters=(*plan.predicted.clusters, forecast.clusters[-1]))
    running = {stage.node for each in clusters for stage in each.stages}
    before = {spare.node: spare for spare in plan.spares}
    spares = tuple(before.get(name, Spare(name, reason)) for name in plan.fleet.names if name not in running)
    return replace(plan, clusters=clusters, rings=rings, spares=spares, predicted=predicted)


def samples_per_s(plan: Plan, names: Collection[str], fleet: Fleet | None = None) -> dict[str, float]:
    """Return by name what each of these clusters of the plan is predicted to make, when no others are in the rings.

    `fleet`: what the nodes can do, where that is not what the plan says.
    """
    clusters = [cluster for cluster in plan.clusters if cluster.name in names]
    if not clusters:
        return {}
    rings = [
        replace(ring, members=tuple(member for member in ring.members if member[0] in names)) for ring in plan.rings
    ]
    spans = SpanCosts(plan.costs, plan.workload)
    forecast = predict(plan.fleet if fleet is None else fleet, spans, clusters, rings).prediction
    return {cluster.name: each.samples_per_s for cluster, each in zip(clusters, forecast.clusters, strict=True)}


def handover_s(plan: Plan, name: str, donors: Collection[str]) -> float:
    """Return how long the state of the cluster's stages is on its way from the clusters `donors`, on idle links."""
    fleet, spans = plan.fleet, SpanCosts(plan.costs, plan.workload)
    copies = 1 + plan.workload.optimizer_state_bytes_per_parameter_byte
    sent: dict[str, float] = {}
    received: dict[str, float] = {}
    for ring in plan.rings:
        nodes = {member: plan.cluster(member[0]).stages[member[1]].node for member in ring.members}
        holders = [node for member, node in nodes.items() if member[0] in donors]
        if not holders:
            continue
        giver = max(holders, key=lambda node: fleet.node(node).up_bytes_per_s)
        size = copies * spans.parameter_bytes(*ring.units)
        sent[giver] = sent.get(giver, 0.0) + size
        for member, node in nodes.items():
            if member[0] == name:
                received[node] = received.get(node, 0.0) + size
    ways = [size / fleet.node(node).up_bytes_per_s for node, size in sent.items()]
    ways += [size / fleet.node(node).down_bytes_per_s for node, size in received.items()]
    return max(ways, default=0.0)
