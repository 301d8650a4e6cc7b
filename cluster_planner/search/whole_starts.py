"""Starts that are whole plans: pipelines across stages of neighbours (stage_groups.py), covers (covers.py), and nodes
alone.

The first two are about clusters of any nodes, so where rules say which nodes may be together there are none. In: the
context of a search, and numbers of clusters. Out: clusters, or nodes.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence

from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.common_cuts import common_cuts
from cluster_planner.pipeline.memory_fit import MemoryFit
from cluster_planner.plan import Cluster
from cluster_planner.search.covers import covers
from cluster_planner.search.estimates import Group
from cluster_planner.search.fleet_parts import MOST_IN_PARTS, above_rates
from cluster_planner.search.search_context import SearchContext, SearchProblem
from cluster_planner.search.stage_groups import orders_across
from cluster_planner.search.whole_plans import Clusters, WholePlans


def by_neighbours(
    context: SearchContext, nodes: Group, counts: Sequence[int], is_hopeful: Callable[[Clusters], bool]
) -> Iterator[Clusters]:
    """Yield plans of so many clusters in which the stages of these nodes are groups of neighbours. Where those that
    heed no rounds are not hopeful, others are not looked at.

    A node with a slow link holds its whole stage group up. So of more than MOST_IN_PARTS nodes, of which no parts are
    searched by several limits, those with links above each rate are grouped by themselves, too.
    """
    problem, names = context.problem, context.problem.fleet.names
    if problem.fleet.rules.are_any:
        return
    parts = [nodes, *(above_rates(problem.fleet, nodes) if len(nodes) > MOST_IN_PARTS else ())]
    given = context.finer, context.points
    ways = (orders_across(problem.fleet, *given, part, counts, problem.seed) for part in parts)
    for orders in itertools.chain.from_iterable(ways):
        if len(orders[0]) < problem.least:
            continue
        named = [[names[i] for i in order] for order in orders]
        for made in common_cuts(problem.fleet, context.fine, named):
            clusters = tuple(Cluster("", one.window, one.stages) for one in made)
            if not is_hopeful(clusters):
                break
            yield clusters


def covering(context: SearchContext, plans: WholePlans, nodes: Group, counts: Sequence[int]) -> Iterator[Clusters]:
    """Yield plans of so many clusters in which these nodes cover the model as often as possible in a round."""
    problem, names = context.problem, context.problem.fleet.names
    if problem.fleet.rules.are_any:
        return
    for cover in covers(problem.fleet, context.fine, nodes, counts, problem.least):
        made = [plans.made.of_spans([names[i] for i, _, _ in chain], [(a, b) for _, a, b in chain]) for chain in cover]
        clusters = tuple(one for one in made if one is not None)
        if len(clusters) == len(cover):
            yield clusters


def lone_nodes(problem: SearchProblem, spans: SpanCosts, memory_fit: MemoryFit) -> Iterator[tuple[float, int]]:
    """Yield (the most that its plan can be worth, number) of each node that may be the only one, the fastest first; of
    equal nodes one.
    """
    fleet, rules = problem.fleet, problem.fleet.rules
    if problem.least > 1 or rules.min_clusters > 1:
        return
    whole = max(spans.flops(0, spans.count), 1e-9)
    most = {
        i: rules.presence((i,)) * problem.work.micro_batch * fleet.nodes[i].flops_per_s / whole for i in problem.able
    }
    tried: set[tuple[float, ...]] = set()
    for i in sorted(problem.able, key=lambda i: (-most[i], i)):
        node = fleet.nodes[i]
        like = (most[i], node.flops_per_s, node.room_bytes, node.host_room_bytes)
        if like in tried or not rules.pinned <= {i}:
            continue
        tried.add(like)
        if memory_fit.holds([node.name]):
            yield most[i], i
