"""Which spares are warm: whose stages each follows, so that it can take the place of one that is lost.

In: a plan, and the nodes that run no stage. Out: by stage, the node that shadows it. A spare that follows a stage is
sent one average of it in each round, which its ring's members divide among them; it sends nothing. That is worth

    (cold_s − WARM_S) / mtbf_s · r'   more samples/s, and costs   R − R'

where cold_s is what processes take to start and the anchor takes on the links, r' is what the cluster makes with the
spare in the stage's place, and R and R' are what all make without and with what the spare is sent. The best pairs are
chosen one after another, as long as they gain. A stage has one warm spare at most. A spare may shadow several stages,
as far as its memory holds all that it follows, and any one of them whole.

A stage whose node states no `mtbf_hours` is not shadowed. To follow takes uplink from everybody for as long as the run
lasts, and pays by how often nodes are lost, of which nothing is known then.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.cluster_anew import forbidden
from cluster_planner.pipeline.memory_fit import stage_fits
from cluster_planner.plan import Cluster, Plan, Ring, Spare
from cluster_planner.predict.prediction import predict
from cluster_planner.rings import RingMember

START_S = 10.0
"""How long a cold spare's processes take until they listen, the wait before them included."""

WARM_S = 2.0
"""How long a warm spare takes for the same."""

MOST_SHADOWED = 64
"""At most so many stages are shadowed: each is one more prediction of the whole fleet."""


def with_warm_spares(plan: Plan) -> Plan:
    """Return the plan with what its spares shadow, and predicted with what they are sent."""
    chosen = shadows_among(plan, [spare.node for spare in plan.spares])
    if not chosen:
        return plan
    spares = tuple(
        replace(spare, shadows=tuple(sorted(of for of, node in chosen.items() if node == spare.node)))
        for spare in plan.spares
    )
    spans = SpanCosts(plan.costs, plan.workload)
    forecast = predict(plan.fleet, spans, plan.clusters, plan.rings, spares).prediction
    before = plan.predicted
    predicted = replace(
        forecast, advice=before.advice, bottleneck=before.bottleneck, best_possible=before.best_possible
    )
    return replace(plan, spares=spares, predicted=predicted)


def shadows_among(
    plan: Plan, free: Collection[str], following: Mapping[RingMember, str] | None = None
) -> dict[RingMember, str]:
    """Return by stage, (cluster name, stage index), which of the `free` nodes should shadow it.

    `following`: the nodes that shadow stages already.
    """
    fleet, spans = plan.fleet, SpanCosts(plan.costs, plan.workload)
    if len(plan.clusters) < 2:
        return {}  # nobody is left in the rings from whom a spare could have anything
    chosen: dict[RingMember, str] = {}
    candidates = sorted(
        (
            (_gained(fleet, spans, plan, of, node), of, node)
            for cluster in plan.clusters
            for index, stage in enumerate(cluster.stages)
            if (of := (cluster.name, index)) not in (following or {}) and fleet.node(stage.node).mtbf_s is not None
            for node in free
            if _fits(fleet, spans, plan, [of], node) and _allowed(fleet, cluster, index, node)
        ),
        key=lambda each: (-each[0], each[1:]),
    )
    spares = _spares(following or {})
    rate = predict(fleet, spans, plan.clusters, plan.rings, spares).prediction.samples_per_s if candidates else 0.0
    for gained, of, node in candidates:
        if len(chosen) == MOST_SHADOWED:
            break
        if of in chosen or not _fits(fleet, spans, plan, [*(s for s, at in chosen.items() if at == node), of], node):
            continue
        tried = _spares({**(following or {}), **chosen, of: node})
        left = predict(fleet, spans, plan.clusters, plan.rings, tried).prediction.samples_per_s
        if gained > rate - left:
            chosen[of], rate = node, left
    return chosen


def _spares(shadowing: Mapping[RingMember, str]) -> tuple[Spare, ...]:
    nodes = sorted(set(shadowing.values()))
    return tuple(Spare(node, "", tuple(of for of, at in shadowing.items() if at == node)) for node in nodes)


def _allowed(fleet: Fleet, cluster: Cluster, index: int, node: str) -> bool:
    """Say whether constraints let the node take the place of a stage."""
    at = {node if i == index else stage.node: i for i, stage in enumerate(cluster.stages)}
    return forbidden(fleet, at, len(cluster.stages)) is None


def _fits(fleet: Fleet, spans: SpanCosts, plan: Plan, stages: Sequence[RingMember], node: str) -> bool:
    """Say whether the node holds all that it follows of these stages, and any one of them at work."""
    there, follows, follows_on_host = fleet.node(node), 0, 0
    for name, index in stages:
        cluster = plan.cluster(name)
        stage, place = cluster.stages[index], (index, len(cluster.stages))
        follows += spans.memory_bytes(*stage.units, 0)
        follows_on_host += spans.host_bytes(*stage.units, 0)
        if not stage_fits(there, spans, stage, place, cluster.window):
            return False
    return follows <= there.room_bytes and follows_on_host <= there.host_room_bytes


def _gained(fleet: Fleet, spans: SpanCosts, plan: Plan, of: RingMember, node: str) -> float:
    """Return the samples/s that a warm spare is worth, while it costs nothing."""
    cluster = plan.cluster(of[0])
    stage = cluster.stages[of[1]]
    mtbf_s = fleet.node(stage.node).mtbf_s
    assert mtbf_s is not None
    rings = [ring for ring in plan.rings if of in ring.members]
    cold_s = START_S + _handover_s(fleet, spans, plan, rings, of, node)
    stages = tuple(replace(each, node=node) if i == of[1] else each for i, each in enumerate(cluster.stages))
    alone = Cluster(cluster.name, cluster.window, stages)
    units = tuple(Ring(each.units, ((cluster.name, i),)) for i, each in enumerate(stages))
    with_spare = predict(fleet, spans, [alone], units).prediction.samples_per_s
    usual = plan.predicted.clusters[plan.clusters.index(cluster)].samples_per_s
    return (cold_s - WARM_S) / mtbf_s * min(with_spare, usual)


def _handover_s(fleet: Fleet, spans: SpanCosts, plan: Plan, rings: Sequence[Ring], of: RingMember, node: str) -> float:
    """Return how long the anchor of a stage takes from the members of its rings to a node, each segment from the one
    that has the fastest link to it."""
    seconds = 0.0
    for ring in rings:
        holders = [plan.cluster(name).stages[index].node for name, index in ring.members if (name, index) != of]
        seconds += spans.parameter_bytes(*ring.units) / max(fleet.flow_bytes_per_s(each, node) for each in holders)
    return seconds
