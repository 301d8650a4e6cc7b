from collections.abc import Callable

from cluster_planner.inputs.constraints import Constraints
from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.links import RegionLink
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.memory_fit import MemoryFit, stage_fits
from cluster_planner.predict.plan_worths import PlanWorths
from cluster_planner.search.search_context import SearchContext, SearchProblem
from cluster_planner.search.whole_plans import Clusters, WholePlans
from cluster_planner.search.whole_starts import by_neighbours, covering


def test_starts_run_disjoint_nodes_that_have_memory_and_none_where_rules_forbid_groups(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    nodes = tuple(make_node(f"{place}{i}", region=place) for place in "ab" for i in range(4))
    links = (RegionLink("a", "b", 0.05, 5e5),)
    costs, work = make_model(8, parameter_bytes=2 * 10**6), make_workload(average_every=128)
    spans = SpanCosts(costs, work)
    for constraints, some in ((Constraints(), True), (Constraints(forbid=(("a0", "b0"),)), False)):
        fleet = Fleet(nodes, (), links, constraints=constraints)
        context = SearchContext(SearchProblem(fleet, costs, work, tuple(range(8)), 2, 0), MemoryFit(fleet, spans, 2))
        plans = WholePlans(fleet, spans, PlanWorths(fleet, spans), fleet.names, 2)
        found = [
            *by_neighbours(context, tuple(range(8)), [1, 2], lambda _: True),
            *covering(context, plans, tuple(range(8)), [1, 2]),
        ]
        assert bool(found) == some
        for clusters in found:
            names = [stage.node for cluster in clusters for stage in cluster.stages]
            assert len(set(names)) == len(names)
            assert all(
                stage_fits(fleet.node(stage.node), spans, stage, (i, len(cluster.stages)), cluster.window)
                for cluster in clusters
                for i, stage in enumerate(cluster.stages)
            )


def test_where_the_first_cuts_are_not_hopeful_no_others_are_made(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    fleet = Fleet(tuple(make_node(f"{place}{i}", region=place) for place in "ab" for i in range(4)))
    costs, work = make_model(8, parameter_bytes=2 * 10**6), make_workload(average_every=128)
    spans = SpanCosts(costs, work)
    context = SearchContext(SearchProblem(fleet, costs, work, tuple(range(8)), 2, 0), MemoryFit(fleet, spans, 2))
    asked = list[int]()

    def is_hopeful(clusters: Clusters) -> bool:
        asked.append(len(clusters))
        return len(clusters) == 1

    assert {len(clusters) for clusters in by_neighbours(context, tuple(range(8)), [1, 2], is_hopeful)} == {1}
    assert 2 in asked
