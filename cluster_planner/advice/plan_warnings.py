"""The node that would make more by itself than the plan of all is worth.

Decides whether there is one, by the formulas of a plan for that node alone: one stage, no link, no staleness. A cluster
of several nodes has two stages at the least, so where links are slow the fastest node may be better off without them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.hours import ALL_DAY, part_of_day
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.best_pipeline import plan_pipeline
from cluster_planner.pipeline.memory_fit import Holding
from cluster_planner.plan import Cluster
from cluster_planner.predict.prediction import predict
from cluster_planner.rings import make_rings


@dataclass(frozen=True)
class ByItself:
    """A node that holds the whole model. `worth`: its samples/s, times the part of the day at which it is there."""

    node: str
    samples_per_s: float
    worth: float


def better_alone(fleet: Fleet, spans: SpanCosts, clusters: Sequence[Cluster], objective: float) -> ByItself | None:
    """The node that makes most by itself, if that is worth more than `objective` samples/s; None where none does, and
    where a node trains alone already.
    """
    if len(clusters) == 1 and len(clusters[0].stages) == 1:
        return None
    need = Holding(fleet, spans, 1).whole_model_bytes
    able = [node for node in fleet.nodes if node.memory_bytes >= need]
    best: ByItself | None = None
    tried: set[tuple[float, int, int]] = set()
    for node in sorted(able, key=lambda node: -_most(spans, node)):
        least = objective if best is None else best.worth
        if _most(spans, node) <= least:
            break
        if (like := (node.flops_per_s, node.memory_bytes, node.hours)) in tried:
            continue
        tried.add(like)
        found = _by_itself(spans, node)
        if found is not None and found.worth > least:
            best = found
    return best


def _most(spans: SpanCosts, node: Node) -> float:
    """What it could be worth at most, had it memory for everything."""
    there = 1.0 if node.hours == ALL_DAY else part_of_day(node.hours)
    return there * spans.workload.micro_batch * node.flops_per_s / max(spans.flops(0, spans.count), 1e-9)


def _by_itself(spans: SpanCosts, node: Node) -> ByItself | None:
    """As it is planned alone; None where it has no memory for the whole model."""
    fleet = Fleet((replace(node, host=None, region=None),))
    pipeline = plan_pipeline(fleet, spans, [node.name], 0.0, 1)
    if pipeline is None:
        return None
    cluster = Cluster("c0", pipeline.window, pipeline.stages)
    predicted = predict(fleet, spans, [cluster], make_rings(fleet, spans, [cluster])).prediction
    return ByItself(node.name, predicted.samples_per_s, predicted.objective)
