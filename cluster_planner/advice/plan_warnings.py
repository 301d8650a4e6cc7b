"""Warnings about a finished plan: a node that would do better by itself, figures that are no longer true, and links of
which nothing is known or of which less counts than nodes.yaml states.

`better_single_node` applies the formulas of a plan to one node alone: one stage, no link, no staleness. Where a user
demands two stages or more of each cluster and links are slow, the fastest node may be better off without the others.
`demands_beside` says which demands keep that node from being the whole plan.

`starved_by_data` says how many processes that read ahead would do where pipelines wait for data.

`predicted_again` predicts a plan as it stands, since a plan.yaml may have been edited: figures further from the file's
than SAME are replaced. The advice and the bound stay those of the search.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cluster_planner.formatting import format_rate
from cluster_planner.inputs.constraints import ALL_DAY, LAST, part_of_day
from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.best_pipeline import plan_pipeline
from cluster_planner.pipeline.memory_fit import MemoryFit
from cluster_planner.plan import Cluster, Plan, Prediction
from cluster_planner.predict.prediction import predict
from cluster_planner.rings import make_rings

SAME = 0.01
"""By so much of it a figure may differ: of another version's formulas, too, which may be finer."""

SAME_RATE = 1.05
"""Two measurements of one link differ by as much as this factor."""


DATA_COSTS = 0.05
"""Less of the fleet's speed than this part is not worth a word."""


@dataclass(frozen=True)
class StarvedByData:
    """A plan whose pipelines wait for data. `samples_per_s`: what it would make with so many `readers` in each first
    and last stage."""

    readers: int
    samples_per_s: float


def starved_by_data(plan: Plan) -> StarvedByData | None:
    """Return how many readers would do for a plan that the reading of data slows by more than DATA_COSTS, or None."""
    work = plan.workload
    if work.reading_s == 0:
        return None
    spans = SpanCosts(plan.costs, work)
    free = predict(plan.fleet, spans.under(replace(work, reading_s=0.0)), plan.clusters, plan.rings).prediction
    if free.samples_per_s <= plan.predicted.samples_per_s * (1 + DATA_COSTS):
        return None
    fastest_s = work.micro_batch / max(cluster.samples_per_s for cluster in free.clusters)
    readers = math.ceil(work.reading_s / fastest_s * (1 - 1e-9))
    under = spans.under(replace(work, readers=readers))
    return StarvedByData(readers, predict(plan.fleet, under, plan.clusters, plan.rings).prediction.samples_per_s)


@dataclass(frozen=True)
class SingleNodePlan:
    """A node that holds the whole model. `worth`: its samples/s, times the part of the day at which it is there."""

    node: str
    samples_per_s: float
    worth: float


def better_single_node(
    fleet: Fleet, spans: SpanCosts, clusters: Sequence[Cluster], objective: float
) -> SingleNodePlan | None:
    """Return the node that makes most by itself, if that is worth more than `objective` samples/s, or None where none
    does, and where a node trains alone already.
    """
    if len(clusters) == 1 and len(clusters[0].stages) == 1:
        return None
    need = MemoryFit(fleet, spans, 1).whole_model_bytes
    able = [node for node in fleet.nodes if node.room_bytes >= need]
    best: SingleNodePlan | None = None
    tried: set[tuple[float, ...]] = set()
    for node in sorted(able, key=lambda node: -_most(spans, node)):
        least = objective if best is None else best.worth
        if _most(spans, node) <= least:
            break
        if (like := (node.flops_per_s, node.room_bytes, node.host_room_bytes, node.hours)) in tried:
            continue
        tried.add(like)
        found = _by_itself(spans, node)
        if found is not None and found.worth > least:
            best = found
    return best


def demands_beside(plan: Plan, name: str) -> list[str]:
    """Return what was demanded of the plan that a plan of this node alone would not meet, as users state it."""
    stated = plan.fleet.constraints
    alone = all(pin.node == name and pin.stage in (None, 0, LAST) for pin in stated.pins)
    unmet = {
        "--min-stages": plan.least_stages > 1,
        "constraints.min_clusters": stated.min_clusters > 1,
        "constraints.pin": not alone,
    }
    return [demand for demand, is_unmet in unmet.items() if is_unmet]


def _most(spans: SpanCosts, node: Node) -> float:
    """Return what the node could be worth at most, if it had memory for everything."""
    there = 1.0 if node.hours == ALL_DAY else part_of_day(node.hours)
    return there * spans.workload.micro_batch * node.flops_per_s / max(spans.flops(0, spans.count), 1e-9)


def _by_itself(spans: SpanCosts, node: Node) -> SingleNodePlan | None:
    """Return the plan of this node alone, or None where it has no memory for the whole model."""
    fleet = Fleet((replace(node, host=None, region=None),))
    pipeline = plan_pipeline(fleet, spans, [node.name], 0.0, 1)
    if pipeline is None:
        return None
    cluster = Cluster("c0", pipeline.window, pipeline.stages)
    predicted = predict(fleet, spans, [cluster], make_rings(fleet, spans, [cluster])).prediction
    return SingleNodePlan(node.name, predicted.samples_per_s, predicted.objective)


def predicted_again(plan: Plan) -> Plan:
    """Return the plan, with the figures of the plan as it stands; the same object where they are what it says. A plan
    of an earlier version is given the figures that it had not.
    """
    spans = SpanCosts(plan.costs, plan.workload)
    made = predict(plan.fleet, spans, plan.clusters, plan.rings, plan.spares).prediction
    if _agree(plan.predicted, made):
        if plan.predicted.loaded_averaging_s is not None or made.loaded_averaging_s is None:
            return plan
        return replace(plan, predicted=replace(plan.predicted, loaded_averaging_s=made.loaded_averaging_s))
    kept = {"advice": plan.predicted.advice, "best_possible": plan.predicted.best_possible}
    return replace(plan, predicted=replace(made, **kept))  # type: ignore[arg-type]


def outdated(plan: Plan, again: Plan) -> str | None:
    """Return what to tell of a plan whose figures `again` has as they are now, or None where they are the same."""
    if again is plan or _agree(plan.predicted, again.predicted):
        return None
    before, now = plan.predicted.samples_per_s, again.predicted.samples_per_s
    words = "figures under predicted are not of the plan as it stands (edited since, or made by another version)"
    return (
        words
        if _near(before, now)
        else f"{words}: it would make {format_rate(now)} samples/s, not {format_rate(before)}"
    )


def assumed_links(plan: Plan) -> list[tuple[str, str]]:
    """Return the pairs of nodes that exchange messages in `plan`, and whose link nodes.yaml does not describe.

    A link is described by itself or by the regions of its two nodes.
    """
    pairs = [pair for c in plan.clusters for pair in itertools.pairwise(stage.node for stage in c.stages)]
    for ring in plan.rings if len(plan.clusters) > 1 else ():
        nodes = [plan.cluster(name).stages[index].node for name, index in ring.members]
        pairs += zip(nodes, (*nodes[1:], nodes[0]), strict=True)
    used = dict.fromkeys((min(pair), max(pair)) for pair in pairs if pair[0] != pair[1])
    return [pair for pair in used if not plan.fleet.knows(*pair)]


def capped_links(plan: Plan) -> list[tuple[str, str]]:
    """Return the pairs of nodes whose link is stated to be faster than the uplinks and downlinks of both nodes allow.

    No flow between such a pair reaches the stated rate in either direction. A difference of up to the factor SAME_RATE
    does not count.
    """
    fleet = plan.fleet
    return [
        (link.a, link.b)
        for link in fleet.links
        if link.bytes_per_s
        > SAME_RATE * max(fleet.flow_bytes_per_s(link.a, link.b), fleet.flow_bytes_per_s(link.b, link.a))
    ]


def _agree(old: Prediction, new: Prediction) -> bool:
    pairs = [(old.samples_per_s, new.samples_per_s), (old.averaging_s, new.averaging_s)]
    for mine, theirs in zip(old.clusters, new.clusters, strict=True):
        pairs += [(mine.samples_per_s, theirs.samples_per_s), (mine.round_trip_s, theirs.round_trip_s)]
        for a, b in zip(mine.stages, theirs.stages, strict=True):
            pairs += [(a.compute_s, b.compute_s), (a.memory_bytes, b.memory_bytes)]
    return all(_near(a, b) for a, b in pairs)


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= SAME * max(abs(a), abs(b))
