from collections.abc import Callable

import pytest

from cluster_planner.inputs.constraints import Constraints
from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.links import RegionLink
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.memory_fit import MemoryFit
from cluster_planner.search.candidates import Assembler
from cluster_planner.search.cluster_search import FEW_NODES, Search
from cluster_planner.search.search_context import SearchProblem
from cluster_planner.search.steps import Step, unheard
from cluster_planner.search.whole_plans import Clusters, WholePlans


@pytest.mark.parametrize("average_every", [128, 100_000])
def test_a_plan_of_a_larger_fleet_is_worth_no_less_than_its_regions_as_clusters(
    make_node: Callable[..., Node],
    make_model: Callable[..., ModelCosts],
    make_workload: Callable[..., Workload],
    average_every: int,
) -> None:
    """Of such a fleet only the likeliest groupings are worked out."""
    nodes = tuple(make_node(f"{place}{i}", region=place) for place in "ab" for i in range(FEW_NODES // 2 + 1))
    near = [RegionLink(place, place, 1e-3, 1e8) for place in "ab"]
    fleet = Fleet(nodes, (), (RegionLink("a", "b", 0.05, 5e5), *near))
    costs, work = make_model(8, parameter_bytes=2 * 10**6), make_workload(average_every=average_every)
    spans, told = SpanCosts(costs, work), list[Step]()
    problem = SearchProblem(fleet, costs, work, tuple(range(len(nodes))), 2, 0)
    best = Search(problem, spans, MemoryFit(fleet, spans, 2), told.append).best()
    regions = Assembler(fleet, spans, 2).candidate([fleet.names[: len(nodes) // 2], fleet.names[len(nodes) // 2 :]])
    assert best is not None
    assert regions is not None
    assert best.objective >= regions.objective
    assert told[-1].objective == pytest.approx(best.objective)
    assert [step.objective for step in told] == sorted(step.objective for step in told)


def test_hill_climbing_begins_at_plans_of_different_worth(
    make_node: Callable[..., Node],
    make_model: Callable[..., ModelCosts],
    make_workload: Callable[..., Workload],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once it began twice at the best plan, which was remembered with its clusters' names and without them."""
    nodes = tuple(make_node(f"{place}{i}", region=place) for place in "ab" for i in range(4))
    fleet = Fleet(nodes, (), (RegionLink("a", "b", 0.05, 5e5),))
    costs, work = make_model(8, parameter_bytes=2 * 10**6), make_workload(average_every=128)
    spans, starts = SpanCosts(costs, work), list[float]()

    def improved(self: WholePlans, clusters: Clusters, tries: int, seed: int) -> tuple[Clusters, float]:
        starts.append(self._worths.of(clusters))
        return clusters, starts[-1]

    monkeypatch.setattr(WholePlans, "improved", improved)
    problem = SearchProblem(fleet, costs, work, tuple(range(len(nodes))), 2, 0)
    Search(problem, spans, MemoryFit(fleet, spans, 2), lambda step: None, is_part=True).best()
    best, other, again = starts
    assert best > other * (1 + 1e-6)
    assert again == best


def test_no_part_of_a_fleet_is_planned_with_fewer_clusters_than_are_demanded(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    """The plan of the one fast node was taken, which by itself is worth most."""
    slow = (make_node(f"n{i}", flops_per_s=1e9, up_bytes_per_s=1e5) for i in range(7))
    nodes = (*slow, make_node("fast", flops_per_s=8e10, up_bytes_per_s=1e5))
    fleet = Fleet(nodes, constraints=Constraints(min_clusters=2))
    costs, work = make_model(1, parameter_bytes=4 * 10**6), make_workload(update_every=1, average_every=64)
    spans = SpanCosts(costs, work)
    problem = SearchProblem(fleet, costs, work, tuple(range(len(nodes))), 1, 0)
    best = Search(problem, spans, MemoryFit(fleet, spans, 1), unheard).best()
    assert best is not None
    assert len(best.clusters) == 2


@pytest.mark.parametrize("above", [0.0, 1e9])
def test_a_part_is_not_divided_in_all_ways_where_that_cannot_be_worth_enough(
    above: float,
    make_node: Callable[..., Node],
    make_model: Callable[..., ModelCosts],
    make_workload: Callable[..., Workload],
) -> None:
    fleet = Fleet(tuple(make_node(f"n{i}") for i in range(4)))
    costs, work, told = make_model(4), make_workload(), list[Step]()
    spans, problem = SpanCosts(costs, work), SearchProblem(fleet, costs, work, (0, 1, 2, 3), 1, 0)
    search = Search(problem, spans, MemoryFit(fleet, spans, 1), told.append, is_part=True, above=above)
    assert search.best() is not None
    assert any(step.phase == "all partitions" for step in told) == (above == 0.0)
