"""From a fleet and a model to a plan.

Decides the number of clusters: for each feasible k the nodes are grouped (clustering.py), each group gets its
best pipeline (pipeline.py), the whole is predicted (predict.py), and the plan of the highest objective
(objective.py) is kept; of equals, the one with fewer clusters. Every k is tried up to EVERY_K, then each k a
fifth larger than the last. Averaging's bytes depend on how fast all clusters are, so each grouping is planned
twice, the second time with the rates that the first one predicted. Knows no file.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cluster_planner.advice import advise
from cluster_planner.clustering import group_nodes
from cluster_planner.costs import ModelCosts, Workload
from cluster_planner.embedding import embed
from cluster_planner.errors import InvalidInput, NoFeasiblePlan
from cluster_planner.fleet import Fleet
from cluster_planner.holding import Holding
from cluster_planner.pipeline import plan_pipeline
from cluster_planner.plan import Cluster, Plan, Ring, validate
from cluster_planner.predict import Forecast, predict
from cluster_planner.rings import make_rings
from cluster_planner.spans import SpanCosts
from cluster_planner.spares import left_out, too_small

EVERY_K = 8
PASSES = 2
HOPELESS = 0.9
"""A grouping whose first pass comes to less than this part of the best so far gets no second."""


@dataclass(frozen=True)
class Candidate:
    """A whole plan but for its words. `averaging_per_s`: see `plan_pipeline`."""

    groups: tuple[tuple[str, ...], ...]
    clusters: tuple[Cluster, ...]
    rings: tuple[Ring, ...]
    forecast: Forecast
    averaging_per_s: float


def make_plan(
    fleet: Fleet,
    costs: ModelCosts,
    workload: Workload,
    *,
    job: Mapping[str, object],
    job_file: str,
    seed: int = 0,
    min_stages: int = 2,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """The best plan found. The same input gives the same plan, whatever the hash seed.

    `min_stages`: stages a cluster has at the least, so that no node need hold the whole model; a fleet of one
    node may always run one stage. `progress` is told one line per number of clusters tried. Raises
    `InvalidInput`, and `NoFeasiblePlan` where fleet, model and workload do not fit each other.
    """
    if min_stages < 1:
        raise InvalidInput(f"must be 1 or more, not {min_stages}", key="min_stages")
    least = 1 if len(fleet.nodes) == 1 else min_stages
    spans = SpanCosts(costs, workload)
    holding = Holding(fleet, spans, least)
    able = tuple(name for name in fleet.names if holding.holds_a_unit(name))
    _require_feasible(fleet, costs, holding, able, least)
    points = embed(fleet, able)
    best: Candidate | None = None
    for k in _counts(len(able) // least):
        groups = group_nodes(points, k, seed, lambda group: holding.holds([able[i] for i in group]))
        candidate = None
        if groups is not None:
            named = tuple(tuple(able[i] for i in group) for group in groups)
            candidate = _plan_groups(fleet, spans, named, least, 0.0 if best is None else _objective(best))
        if progress is not None:
            progress(_progress_line(k, candidate))
        if candidate is not None and (best is None or _objective(candidate) > _objective(best) * (1 + 1e-9)):
            best = candidate
    if best is None:
        raise NoFeasiblePlan(_no_fit(fleet, costs, holding, able, least))
    advice, about = advise(fleet, spans, best.clusters, best.rings, best.forecast)
    predicted = replace(best.forecast.prediction, advice=advice)
    if "would raise" in advice:
        predicted = replace(
            predicted, bottleneck=f"{best.clusters[about].name}: {predicted.clusters[about].bottleneck}"
        )
    spares = [
        spare
        for cluster, group in zip(best.clusters, best.groups, strict=True)
        for spare in left_out(fleet, spans, cluster, group, best.averaging_per_s, least)
    ]
    plan = Plan(
        clusters=best.clusters,
        rings=best.rings,
        spares=(*spares, *too_small(fleet, holding)),
        predicted=predicted,
        fleet=fleet,
        costs=costs,
        workload=workload,
        job=job,
        job_file=job_file,
        seed=seed,
    )
    validate(plan)
    return plan


def _counts(most: int) -> Iterator[int]:
    k = 1
    while k <= most:
        yield k
        k = k + 1 if k < EVERY_K else k + k // 4


def _objective(candidate: Candidate) -> float:
    return candidate.forecast.prediction.objective


def _plan_groups(
    fleet: Fleet, spans: SpanCosts, groups: Sequence[tuple[str, ...]], least: int, to_beat: float
) -> Candidate | None:
    work = spans.workload
    moved = 2 * (len(groups) - 1) / len(groups) * work.averaged_bytes_per_parameter_byte / work.average_every
    rate = 0.0
    best: Candidate | None = None
    for _ in range(PASSES if len(groups) > 1 else 1):
        candidate = _plan_once(fleet, spans, groups, moved * rate, least)
        if candidate is None:
            break
        if best is None or _objective(candidate) > _objective(best):
            best = candidate
        if _objective(candidate) < HOPELESS * to_beat:
            break
        rate = candidate.forecast.prediction.samples_per_s
    return best


def _plan_once(
    fleet: Fleet, spans: SpanCosts, groups: Sequence[tuple[str, ...]], averaging_per_s: float, least: int
) -> Candidate | None:
    planned = []
    for group in groups:
        pipeline = plan_pipeline(fleet, spans, group, averaging_per_s, least)
        if pipeline is None:
            return None
        planned.append((pipeline, group))
    planned.sort(key=lambda entry: -entry[0].samples_per_s)
    clusters = tuple(Cluster(f"c{i}", pipeline.window, pipeline.stages) for i, (pipeline, _) in enumerate(planned))
    rings = make_rings(fleet, spans, clusters)
    forecast = predict(fleet, spans, clusters, rings)
    return Candidate(tuple(group for _, group in planned), clusters, rings, forecast, averaging_per_s)


def _progress_line(k: int, candidate: Candidate | None) -> str:
    name = "1 cluster" if k == 1 else f"{k} clusters"
    if candidate is None:
        return f"{name}: the nodes cannot be grouped so that each cluster holds the model"
    predicted = candidate.forecast.prediction
    return (
        f"{name}: {predicted.samples_per_s:.4g} samples/s, worth {predicted.objective:.4g} "
        f"(efficiency {predicted.efficiency:.3f})"
    )


def _require_feasible(fleet: Fleet, costs: ModelCosts, holding: Holding, able: Sequence[str], least: int) -> None:
    if len(costs.units) < least:
        raise NoFeasiblePlan(
            f"the model has {_counted(len(costs.units), 'unit')} and cannot be cut into {least} stages; "
            f"a cluster has {least} at the least"
        )
    biggest = max(fleet.nodes, key=lambda node: node.memory_bytes)
    has = f"the largest node, {biggest.name}, has {_gb(biggest.memory_bytes)}"
    if not able:
        raise NoFeasiblePlan(
            f"no node has memory for any unit: the smallest needs {_gb(holding.smallest_unit_bytes)}, {has}"
        )
    if biggest.memory_bytes < holding.largest_unit_bytes:
        raise NoFeasiblePlan(
            f"no node has memory for the largest unit: it needs {_gb(holding.largest_unit_bytes)}, {has}"
        )
    if not holding.holds(able):
        raise NoFeasiblePlan(_no_fit(fleet, costs, holding, able, least))


def _no_fit(fleet: Fleet, costs: ModelCosts, holding: Holding, able: Sequence[str], least: int) -> str:
    if len(able) < least:
        return (
            f"a cluster needs {least} nodes at the least, and {_counted(len(able), 'node')} of "
            f"{len(fleet.nodes)} can hold a unit ({_gb(holding.smallest_unit_bytes)})"
        )
    need = holding.whole_model_bytes
    have = sum(fleet.node(name).memory_bytes for name in able)
    return (
        f"the nodes together cannot hold the model: in one piece it needs {_gb(need)} "
        f"(weights {_gb(costs.parameter_bytes)}, with copies, gradients, optimizer state and activations), and "
        f"the {_counted(len(able), 'node')} that can hold a unit have {_gb(have)}, each with its own process "
        "and whole units only; add nodes or memory, or lower micro_batch, max_staleness or max_lag"
    )


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _gb(amount: int) -> str:
    return f"{amount / 1e9:.3g} GB"
