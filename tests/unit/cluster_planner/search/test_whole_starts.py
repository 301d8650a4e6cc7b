from collections.abc import Callable

import pytest

from cluster_planner.inputs.constraints import Constraints
from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.links import RegionLink
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.memory_fit import MemoryFit, stage_fits
from cluster_planner.predict.plan_worths import PlanWorths
from cluster_planner.search.fleet_parts import MOST_IN_PARTS
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


@pytest.mark.parametrize(("number", "without_slow"), [(MOST_IN_PARTS, False), (MOST_IN_PARTS + 8, True)])
def test_of_many_nodes_those_with_faster_links_are_also_grouped_by_themselves(
    number: int,
    without_slow: bool,
    make_node: Callable[..., Node],
    make_model: Callable[..., ModelCosts],
    make_workload: Callable[..., Workload],
) -> None:
    """Every fourth node has a slow uplink. Of fewer nodes the search asks for such parts by itself."""
    rates = [3e5 if i % 4 == 0 else 1e7 for i in range(number)]
    fleet = Fleet(tuple(make_node(f"n{i}", region="ab"[i % 2], up_bytes_per_s=rate) for i, rate in enumerate(rates)))
    costs, work = make_model(8, parameter_bytes=2 * 10**6), make_workload(average_every=128)
    able = tuple(range(number))
    context = SearchContext(SearchProblem(fleet, costs, work, able, 1, 0), MemoryFit(fleet, SpanCosts(costs, work), 1))
    slow, some_have, some_have_none = {f"n{i}" for i in range(0, number, 4)}, False, False
    for clusters in by_neighbours(context, able, [number // 4], lambda _: True):
        has_slow = any(stage.node in slow for cluster in clusters for stage in cluster.stages)
        some_have, some_have_none = some_have or has_slow, some_have_none or not has_slow
    assert some_have
    assert some_have_none == without_slow


def test_only_the_nodes_that_are_asked_for_are_grouped(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    fleet = Fleet(tuple(make_node(f"n{i}", region="ab"[i % 2]) for i in range(8)))
    costs, work = make_model(8), make_workload()
    spans = SpanCosts(costs, work)
    context = SearchContext(SearchProblem(fleet, costs, work, tuple(range(8)), 1, 0), MemoryFit(fleet, spans, 1))
    found = list(by_neighbours(context, (1, 2, 5), [1, 2], lambda _: True))
    assert found
    assert {stage.node for plan in found for cluster in plan for stage in cluster.stages} <= {"n1", "n2", "n5"}
