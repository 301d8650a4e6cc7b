from collections.abc import Callable

import pytest

from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.plan import Cluster, Stage
from cluster_planner.predict.plan_worths import PlanWorths
from cluster_planner.search.moved_cuts import with_moved_cuts
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
    found = with_moved_cuts(plans, worths, start, 500)
    assert cuts_of(found) == [[6, 12], [6, 12]]
    assert worths.of(found) > worths.of(start)


@pytest.mark.parametrize("ends", [(1, 2, 3, 12), (4, 5, 6, 12), (9, 10, 11, 12), (3, 6, 9, 12)])
def test_at_the_end_no_cut_gains_by_another_unit(given: tuple[WholePlans, PlanWorths], ends: tuple[int, ...]) -> None:
    plans, worths = given
    start = (cluster("abcd", *ends),)
    found = with_moved_cuts(plans, worths, start, 500)
    assert worths.of(found) >= worths.of(start)
    for at in range(3):
        for by in (1, -1):
            moved = plans.with_cut_moved(found, (0, at), by, together=False)
            assert moved is None or worths.of(moved) <= worths.of(found) * 1.001


def test_no_more_plans_are_compared_than_asked_for(given: tuple[WholePlans, PlanWorths]) -> None:
    plans, worths = given
    start = (cluster("abcd", 1, 2, 3, 12),)
    assert with_moved_cuts(plans, worths, start, 0) == start
    some = with_moved_cuts(plans, worths, start, 3)
    assert worths.of(start) <= worths.of(some) < worths.of(with_moved_cuts(plans, worths, start, 500))


def test_a_plan_that_no_cut_betters_stays(given: tuple[WholePlans, PlanWorths]) -> None:
    plans, worths = given
    start = (cluster("ab", 6, 12), cluster("c", 12))
    assert with_moved_cuts(plans, worths, start, 500) == start


def test_a_cut_that_clusters_share_moves_with_all_of_them(given: tuple[WholePlans, PlanWorths]) -> None:
    plans, _ = given
    two = (cluster("ab", 4, 12), cluster("cd", 4, 12))
    together, alone = (plans.with_cut_moved(two, (0, 0), 2, together=both) for both in (True, False))
    assert together is not None
    assert alone is not None
    assert cuts_of(together) == [[6, 12], [6, 12]]
    assert cuts_of(alone) == [[6, 12], [4, 12]]
    assert plans.with_cut_moved(two, (0, 0), 8, together=True) is None
