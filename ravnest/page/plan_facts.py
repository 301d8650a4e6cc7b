"""What a page shows of a plan: who runs what, and what was predicted. Pure.

In: a plan. Out: a `StageFacts` for each stage, and plain data for the page. The bytes of a round are those that the
members' exchange brings (design §7), divided as in a run: around a ring of n equal members 2 (n − 1) / n times the
parameters as they travel, and n − 1 times where all exchange directly.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from cluster_planner import Plan, SpanCosts, links_of_ring, ring_traffic
from ravnest.driver.outcome import planned_bytes
from ravnest.pipeline import stage_name
from ring_timing import Division, Groups, divide, hop_bytes


@dataclass(frozen=True)
class StageFacts:
    """One stage as it was planned."""

    stage: str
    node: str
    units: tuple[int, int]
    tensor_bytes: Callable[[int], int]
    """The prediction for its tensors with a window, without the process."""
    round_bytes: int
    """What comes to it in a round."""


def stages_of(plan: Plan) -> dict[str, list[StageFacts]]:
    """By cluster: its stages, in order."""
    found = {}
    spans = SpanCosts(plan.costs, plan.workload)
    came = _round_bytes(plan, spans)
    for cluster in plan.clusters:
        found[cluster.name] = [
            StageFacts(
                name := stage_name(cluster.name, index),
                stage.node,
                stage.units,
                partial(planned_bytes, plan, spans, stage, (index, len(cluster.stages))),
                came.get(name, 0),
            )
            for index, stage in enumerate(cluster.stages)
        ]
    return found


def _round_bytes(plan: Plan, spans: SpanCosts) -> Mapping[str, int]:
    """By stage: the bytes that come to it in a round, over all its rings."""
    came: dict[str, int] = {}
    number_bytes = plan.workload.averaged_number_bytes
    for ring in ring_traffic(spans, plan.clusters, plan.rings):
        count, whole = len(ring.members), ring.elements * number_bytes
        if count == 1:
            continue
        nodes = [plan.cluster(cluster).stages[index].node for cluster, index in ring.members]
        links = links_of_ring(plan.fleet, nodes)
        work = plan.workload
        rules = {"each": work.robust_averaging, "hierarchical": work.hierarchical_averaging}
        division = divide(ring.elements, number_bytes, links, **rules)
        for member, n_bytes in zip(ring.members, _coming(division, whole, count), strict=True):
            name = stage_name(*member)
            came[name] = came.get(name, 0) + round(n_bytes)
    return came


def _coming(division: Division, whole: float, count: int) -> list[float]:
    """Return the bytes that come to each of `count` members in a round of a vector of `whole` bytes."""
    if division.direct:
        return [(count - 1) * whole] * count
    if division.groups is None:
        hops = hop_bytes(whole, count, division.shares)
        return [hops[place - 1] for place in range(count)]  # over the hop from the member before it
    coming = [0.0] * count
    for (_, receiver), n_bytes in Groups(count, division.groups).traffic(whole).items():
        coming[receiver] += n_bytes
    return coming


def predictions_of(plan: Plan) -> dict[str, object]:
    """What the plan predicts of the whole fleet, as plain data."""
    predicted = plan.predicted
    return {
        "predicted": {
            "samples_per_s": predicted.samples_per_s,
            "efficiency": predicted.efficiency,
            "worth": predicted.objective,
            "best_worth": predicted.best_possible,
            "averaging_s": predicted.averaging_s,
            "loaded_averaging_s": predicted.loaded_averaging_s,
            "bottleneck": predicted.bottleneck,
            "advice": predicted.advice,
        },
        "average_every": plan.workload.average_every,
        "max_lag": plan.workload.max_lag,
        "max_staleness": plan.workload.max_staleness,
        "nodes": len(plan.fleet.nodes),
    }
