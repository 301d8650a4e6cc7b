"""Starts that are whole plans: pipelines across stages of neighbours (stage_groups.py), and covers (covers.py).

Both are about clusters of any nodes, so where rules say which nodes may be together there are none. In: the context of
a search, and numbers of clusters. Out: clusters.
"""

from collections.abc import Iterator, Sequence

from cluster_planner.pipeline.common_cuts import common_cuts
from cluster_planner.plan import Cluster
from cluster_planner.search.covers import covers
from cluster_planner.search.estimates import Group
from cluster_planner.search.search_context import SearchContext
from cluster_planner.search.stage_groups import orders_across
from cluster_planner.search.whole_plans import Clusters, WholePlans


def by_neighbours(context: SearchContext, counts: Sequence[int]) -> Iterator[Clusters]:
    """Yield plans of so many clusters whose stages are groups of neighbours."""
    problem, names = context.problem, context.problem.fleet.names
    if problem.fleet.rules.are_any:
        return
    for orders in orders_across(problem.fleet, context.finer, context.points, problem.able, counts, problem.seed):
        if len(orders[0]) < problem.least:
            continue
        named = [[names[i] for i in order] for order in orders]
        for made in common_cuts(problem.fleet, context.fine, named):
            yield tuple(Cluster("", one.window, one.stages) for one in made)


def covering(context: SearchContext, plans: WholePlans, nodes: Group, counts: Sequence[int]) -> Iterator[Clusters]:
    """Yield plans of so many clusters in which these nodes cover the model as often as possible in a round."""
    problem, names = context.problem, context.problem.fleet.names
    if problem.fleet.rules.are_any:
        return
    for cover in covers(problem.fleet, context.fine, nodes, counts, problem.least):
        made = [plans.made([names[i] for i, _, _ in chain], [(a, b) for _, a, b in chain]) for chain in cover]
        clusters = tuple(one for one in made if one is not None)
        if len(clusters) == len(cover):
            yield clusters
