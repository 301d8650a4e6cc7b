"""From a fleet and a model to a plan.

Decides the number of clusters: for each feasible k the nodes are grouped (clustering.py), each group gets its best
pipeline (pipeline.py), the whole is predicted (predict.py), and the plan of the highest objective (objective.py) is kept; of
equals, the one with fewer clusters. Every k is tried up to EVERY_K, then each k a fifth larger than the last.
Averaging's bytes depend on how fast all clusters are, so each grouping is planned twice, the second time with the
rates that the first one predicted. Knows no file.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cluster_planner.advice import advise
from cluster_planner.clustering import group_nodes
from cluster_planner.costs import ModelCosts, Workload
from cluster_planner.embedding import embed
from cluster_planner.errors import InvalidInput, NoFeasiblePlan
from cluster_planner.fleet import Fleet
from cluster_planner.holding import Holding
from cluster_planner.pipeline import Pipeline, plan_pipeline
from cluster_planner.plan import Cluster, Plan, Ring, Spare, validate
from cluster_planner.predict import Forecast, predict
from cluster_planner.rings import make_rings
from cluster_planner.spans import SpanCosts
from cluster_planner.spares import spare_reasons

EVERY_K = 16
PASSES = 2


@dataclass(frozen=True)
class Candidate:
    """A whole plan but for its words."""

    groups: tuple[tuple[str, ...], ...]
    clusters: tuple[Cluster, ...]
    rings: tuple[Ring, ...]
    forecast: Forecast
    averaged: tuple[float, ...]


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

    `min_stages`: stages a cluster has at the least, so that no node need hold the whole model; a fleet of one node
    may always run one stage. `progress` is told one line per number of clusters tried.
    Raises `InvalidInput`, and `NoFeasiblePlan` where fleet, model and workload do not fit each other.
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
            candidate = _plan_groups(fleet, spans, tuple(tuple(able[i] for i in g) for g in groups), least)
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
    plan = Plan(
        clusters=best.clusters,
        rings=best.rings,
        spares=_spares(fleet, spans, holding, best, least),
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
