"""From a fleet and a model to a plan.

Decides what a plan is made of: groups and their pipelines as the search finds them (cluster_search.py), its spares with
their
reasons (spares.py), and the advice (single_changes.py). The same input gives the same plan, whatever the hash seed.
Knows no
file.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from cluster_planner.advice.feasibility import (
    no_common_hours,
    no_fit,
    no_fit_for_constraints,
    require_feasible,
    require_possible,
)
from cluster_planner.advice.job_changes import most_of_a_round
from cluster_planner.advice.single_changes import advise
from cluster_planner.advice.spares import left_out, too_small
from cluster_planner.errors import InvalidInput, NoFeasiblePlan
from cluster_planner.inputs.constraints import UNCONSTRAINED
from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.memory_fit import Holding
from cluster_planner.plan import Plan, validate
from cluster_planner.predict.upper_bound import best_possible
from cluster_planner.search.cluster_search import Search
from cluster_planner.search.journal import Step
from cluster_planner.search.search_context import Problem


def make_plan(
    fleet: Fleet,
    costs: ModelCosts,
    workload: Workload,
    *,
    job: Mapping[str, object],
    job_file: str,
    seed: int = 0,
    min_stages: int = 2,
    trained_samples: float = math.inf,
    trained_s: float = math.inf,
    progress: Callable[[Step], None] | None = None,
) -> Plan:
    """The best plan found. The same input gives the same plan, whatever the hash seed.

    `min_stages`: stages a cluster has at the least, so that no node need hold the whole model; a fleet of one
    node may always run one stage. `trained_samples`, `trained_s`: after how many samples of the whole fleet, or
    seconds, training ends; the advice goes by them. `progress` is told of each step of the search. Raises
    `InvalidInput`, and `NoFeasiblePlan` where fleet, model and workload do not fit each other.
    """
    if min_stages < 1:
        raise InvalidInput(f"must be 1 or more, not {min_stages}", key="min_stages")
    least = 1 if len(fleet.nodes) == 1 else min_stages
    spans = SpanCosts(costs, workload)
    holding = Holding(fleet, spans, least)
    able = tuple(i for i, name in enumerate(fleet.names) if holding.holds_a_unit(name))
    names = tuple(fleet.names[i] for i in able)
    require_feasible(fleet, costs, holding, names, least)
    require_possible(fleet, spans, names, least)

    tell = progress if progress is not None else _unheard
    best = Search(Problem(fleet, costs, workload, able, least, seed), spans, holding, tell).best()
    if best is None and fleet.rules.count_hours and fleet.constraints == UNCONSTRAINED:
        raise NoFeasiblePlan(no_common_hours(), key="nodes")
    if best is None and (fleet.rules.are_any or fleet.rules.min_clusters > 1):
        raise NoFeasiblePlan(no_fit_for_constraints(fleet), key="constraints")
    if best is None:
        raise NoFeasiblePlan(no_fit(fleet, costs, holding, names, least))
    most_round = most_of_a_round(trained_samples, trained_s, best.forecast.prediction.samples_per_s)
    advice = advise(fleet, spans, best.clusters, best.rings, best.forecast, most_round)
    bound = best_possible(fleet, spans, able, least)
    predicted = replace(best.forecast.prediction, advice=advice.line, best_possible=bound)
    if (about := advice.cluster) is not None:
        predicted = replace(
            predicted, bottleneck=f"{best.clusters[about].name}: {predicted.clusters[about].bottleneck}"
        )
    running = {stage.node for cluster in best.clusters for stage in cluster.stages}
    idle = tuple(name for name in names if name not in running)
    plan = Plan(
        clusters=best.clusters,
        rings=best.rings,
        spares=(
            *left_out(fleet, spans, best.clusters, idle, least, best.objective),
            *too_small(fleet, holding),
        ),
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


def _unheard(step: Step) -> None:
    """Nobody asked."""
