from collections.abc import Callable

import pytest

from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.links import Link, RegionLink
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.plan import Cluster, Stage
from cluster_planner.predict.plan_worths import PlanWorths
from cluster_planner.search.small_moves import with_small_moves
from cluster_planner.search.whole_plans import WholePlans


@pytest.fixture
def given(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> tuple[WholePlans, PlanWorths]:
    """Four equal nodes and a model of 12 equal units."""
    fleet = Fleet(tuple(make_node(name) for name in "abcd"))
    spans = SpanCosts(make_model(12), make_workload())
    worths = PlanWorths(fleet, spans)
    return WholePlans(fleet, spans, worths, fleet.names, 2), worths


def cluster(nodes: str, *ends: int) -> Cluster:
    starts = (0, *ends)
    return Cluster("", 8, tuple(Stage(name, (starts[i], ends[i])) for i, name in enumerate(nodes)))


def cuts_of(clusters: tuple[Cluster, ...]) -> list[list[int]]:
    return [[stage.units[1] for stage in one.stages] for one in clusters]


def test_a_cut_far_off_goes_where_both_sides_compute_as_long(given: tuple[WholePlans, PlanWorths]) -> None:
    plans, worths = given
    start = (cluster("ab", 2, 12), cluster("cd", 11, 12))
    found = with_small_moves(plans, worths, start, 500)
    assert cuts_of(found) == [[6, 12], [6, 12]]
    assert worths.of(found) > worths.of(start)


@pytest.mark.parametrize("ends", [(1, 2, 3, 12), (4, 5, 6, 12), (9, 10, 11, 12), (3, 6, 9, 12)])
def test_at_the_end_no_cut_gains_by_another_unit(given: tuple[WholePlans, PlanWorths], ends: tuple[int, ...]) -> None:
    plans, worths = given
    start = (cluster("abcd", *ends),)
    found = with_small_moves(plans, worths, start, 500)
    assert worths.of(found) >= worths.of(start)
    for at in range(3):
        for by in (1, -1):
            moved = plans.with_cut_moved(found, (0, at), by, together=False)
            assert moved is None or worths.of(moved) <= worths.of(found) * 1.001


def test_no_more_plans_are_compared_than_asked_for(given: tuple[WholePlans, PlanWorths]) -> None:
    plans, worths = given
    start = (cluster("abcd", 1, 2, 3, 12),)
    assert with_small_moves(plans, worths, start, 0) == start
    some = with_small_moves(plans, worths, start, 3)
    assert worths.of(start) <= worths.of(some) < worths.of(with_small_moves(plans, worths, start, 500))


def test_a_plan_that_no_cut_betters_stays(given: tuple[WholePlans, PlanWorths]) -> None:
    plans, worths = given
    made = plans.made.cut_anew("ab")
    assert made is not None
    start = (made, cluster("c", 12))
    assert with_small_moves(plans, worths, start, 500) == start


def test_of_few_stages_the_order_is_found_too(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    """Cuts alone leave the slow link between a and c in the middle of the pipeline."""
    fleet = Fleet(tuple(make_node(name) for name in "abc"), (Link("a", "c", 0.3, 1e4),))
    spans = SpanCosts(make_model(12), make_workload())
    worths = PlanWorths(fleet, spans)
    start = (cluster("acb", 4, 8, 12),)
    (found,) = with_small_moves(WholePlans(fleet, spans, worths, fleet.names, 2), worths, start, 500)
    assert [stage.node for stage in found.stages][1] == "b"
    assert worths.of((found,)) > 1.5 * worths.of(start)


def test_a_cut_that_clusters_share_moves_with_all_of_them(given: tuple[WholePlans, PlanWorths]) -> None:
    plans, _ = given
    two = (cluster("ab", 4, 12), cluster("cd", 4, 12))
    together, alone = (plans.with_cut_moved(two, (0, 0), 2, together=both) for both in (True, False))
    assert together is not None
    assert alone is not None
    assert cuts_of(together) == [[6, 12], [6, 12]]
    assert cuts_of(alone) == [[6, 12], [4, 12]]
    assert plans.with_cut_moved(two, (0, 0), 8, together=True) is None


def test_clusters_take_each_other_s_cuts_and_nodes_change_places_within_their_stage(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    """Pipelines between two places are slow: no cut helps, but that nodes of the same stage change places does."""
    nodes = tuple(make_node(f"{place}{i}", region=place) for place in "ab" for i in range(2))
    near = (RegionLink(place, place, 1e-3, 1e8) for place in "ab")
    fleet = Fleet(nodes, (), (RegionLink("a", "b", 0.05, 5e5), *near))
    costs = make_model(8, boundary_bytes=10**6, boundary_gradient_bytes=10**6)
    spans = SpanCosts(costs, make_workload(average_every=10**6))
    worths = PlanWorths(fleet, spans)
    plans = WholePlans(fleet, spans, worths, fleet.names, 2)
    made = plans.made.of_spans(["a0", "b0"], [(0, 4), (4, 8)]), plans.made.of_spans(["b1", "a1"], [(0, 3), (3, 8)])
    start = tuple(one for one in made if one is not None)
    assert len(start) == 2
    found = with_small_moves(plans, worths, start, 200)
    assert worths.of(found) > 1.2 * worths.of(start)
    assert all(one.stages[0].node[0] == one.stages[1].node[0] for one in found), "pipelines lie within places"
    other = cluster("ab", 4, 12), cluster("cd", 7, 12)
    assert plans.aligned(other, (0, 1), 1) == 1
