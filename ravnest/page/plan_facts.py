"""What a page shows of a plan: who runs what, and what was predicted. Pure.

In: a plan. Out: a `StageFacts` for each stage, and plain data for the page. Bytes of averaging are those that come to
a stage in a round, as many as it sends: 2 (n − 1) / n times its parameters as they travel, for a ring of n members
(design §7).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from cluster_planner import Plan, SpanCosts
from ravnest.driver.outcome import planned_bytes
from ravnest.pipeline import stage_name


@dataclass(frozen=True)
class StageFacts:
    """One stage as it was planned."""

    stage: str
    node: str
    units: tuple[int, int]
    tensor_bytes: Callable[[int], int]
    """The prediction for its tensors with a window, without the process."""
    round_bytes: int
    """What it gets and sends in a round."""


def stages_of(plan: Plan) -> dict[str, list[StageFacts]]:
    """By cluster: its stages, in order."""
    sent = _round_bytes(plan)
    found = {}
    spans = SpanCosts(plan.costs, plan.workload)
    for cluster in plan.clusters:
        found[cluster.name] = [
            StageFacts(
                name := stage_name(cluster.name, index),
                stage.node,
                stage.units,
                partial(planned_bytes, plan, spans, stage, (index, len(cluster.stages))),
                sent.get(name, 0),
            )
            for index, stage in enumerate(cluster.stages)
        ]
    return found


def _round_bytes(plan: Plan) -> Mapping[str, int]:
    sent: dict[str, int] = {}
    for ring in plan.rings:
        first, end = ring.units
        held = sum(unit.parameter_bytes for unit in plan.costs.units[first:end])
        count = len(ring.members)
        share = plan.workload.vectors_sent(count) * plan.workload.averaged_bytes_per_parameter_byte
        for cluster, index in ring.members:
            name = stage_name(cluster, index)
            sent[name] = sent.get(name, 0) + round(held * share)
    return sent


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
            "bottleneck": predicted.bottleneck,
            "advice": predicted.advice,
        },
        "average_every": plan.workload.average_every,
        "max_lag": plan.workload.max_lag,
        "max_staleness": plan.workload.max_staleness,
        "nodes": len(plan.fleet.nodes),
    }
