"""A plan of a changed fleet, model or workload, found from the plan that was made before the change.

It climbs from that plan, and in a fleet of up to MOST_NODES_TO_PLAN_ANEW nodes also from groups, as a search of a part
of a fleet does. A search of all would take several times as long (decision 173).
In: clusters, and what has changed. Out: a plan that was worked out, or None.
"""

from collections.abc import Sequence

from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.memory_fit import MemoryFit, stage_fits
from cluster_planner.plan import Cluster
from cluster_planner.predict.plan_worths import PlanWorths
from cluster_planner.search.candidates import Assembler, Candidate
from cluster_planner.search.cluster_search import Search
from cluster_planner.search.search_context import CUT_POSITIONS, SearchProblem
from cluster_planner.search.steps import unheard
from cluster_planner.search.whole_plans import Clusters, WholePlans

MOST_NODES_TO_PLAN_ANEW = 24

TRIES = 200
"""The number of changes of the plan that are tried."""


def planned_anew(
    clusters: Sequence[Cluster], fleet: Fleet, costs: ModelCosts, work: Workload, least: int, seed: int
) -> Candidate | None:
    """Return a plan of this fleet, model and workload; None where none was found. `clusters`: those of the plan before.
    `least`: stages of a cluster, at the least.
    """
    spans, fine = SpanCosts(costs, work), SpanCosts(costs, work, CUT_POSITIONS)
    memory_fit, worths = MemoryFit(fleet, spans, least), PlanWorths(fleet, spans)
    able = tuple(i for i, name in enumerate(fleet.names) if memory_fit.holds_a_unit(name))
    climber = WholePlans(fleet, spans, worths, [fleet.names[i] for i in able], least, few=fine)
    starts = [one for one in (tuple(clusters), _fitted(climber, clusters)) if _fits(fleet, spans, one)]
    found = []
    if starts:
        climbed, _ = climber.improved(max(starts, key=worths.of), TRIES, seed)
        found.append(Assembler(fleet, spans, least).of_clusters(climbed))
    if len(fleet.nodes) <= MOST_NODES_TO_PLAN_ANEW:
        problem = SearchProblem(fleet, costs, work, able, least, seed)
        searched = Search(problem, spans, memory_fit, unheard, is_part=True).best()
        found += [] if searched is None else [searched]
    return max(found, key=lambda one: one.objective, default=None)


def _fitted(climber: WholePlans, clusters: Sequence[Cluster]) -> Clusters:
    """Return the clusters with the windows that they want and have memory for, or cut anew where they have none; no
    clusters where one of them fits in no way.
    """
    found = []
    for cluster in clusters:
        names = [stage.node for stage in cluster.stages]
        fitted = climber.made.of_spans(names, [stage.units for stage in cluster.stages]) or climber.made.cut_anew(names)
        if fitted is None:
            return ()
        found.append(fitted)
    return tuple(found)


def _fits(fleet: Fleet, spans: SpanCosts, clusters: Clusters) -> bool:
    """Say whether these are clusters, each stage of which has memory for what is in flight."""
    return bool(clusters) and all(
        stage_fits(fleet.node(stage.node), spans, stage, (index, len(cluster.stages)), cluster.window)
        for cluster in clusters
        for index, stage in enumerate(cluster.stages)
    )
