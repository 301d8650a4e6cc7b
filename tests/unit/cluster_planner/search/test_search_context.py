from collections.abc import Callable
from dataclasses import replace

import pytest

from cluster_planner import Fleet, ModelCosts, Workload
from cluster_planner.inputs.constraints import Constraints
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.memory_fit import MemoryFit
from cluster_planner.predict.objective import AveragingLimits
from cluster_planner.search import search_context as context
from cluster_planner.search.search_context import SearchContext, SearchProblem


@pytest.fixture
def given(home: Fleet, make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]) -> SearchContext:
    work = make_workload()
    problem = SearchProblem(home, make_model(), work, tuple(range(len(home.nodes))), 2, 0)
    return SearchContext(problem, MemoryFit(home, SpanCosts(problem.costs, work), 2))


def test_estimates_are_kept_while_averaging_takes_about_as_much(given: SearchContext) -> None:
    first = given.estimator(3, AveragingLimits(100.0))
    assert given.estimator(3, AveragingLimits(100.1)) is first
    assert given.estimator(3, AveragingLimits(200.0)) is not first
    assert given.estimator(3, AveragingLimits(100.0)) is not first  # only the last one is kept


def test_too_many_estimates_are_forgotten(given: SearchContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "REMEMBERED", 1)
    first = given.estimator(3, AveragingLimits())
    first.of([(0, 1), (1, 2)])
    assert given.estimator(3, AveragingLimits()).asked == 0


def test_a_search_counts_only_what_it_estimates_itself(given: SearchContext) -> None:
    groups = ((0, 1, 2), (3, 4, 5))
    nodes = given.problem.able
    _, first = given.searched(nodes, groups, AveragingLimits(), context.Totals(), 40)
    _, again = given.searched(nodes, groups, AveragingLimits(), context.Totals(), 40)
    assert not first.startswith("0 ")
    assert again == "0 groups estimated"


def test_groups_begin_as_k_means_and_as_arcs_that_hold_the_model(given: SearchContext) -> None:
    everyone = list(given.problem.able)
    together, apart, in_threes = (list(given.groupings(given.problem.able, k, 2)) for k in (1, 2, 3))
    assert len(together) == 1
    assert len(list(given.groupings(given.problem.able, 3, 1))) == 1
    assert len(apart) == 1  # two regions of three nodes: both ways are the same
    assert len(in_threes) == 2
    assert {len(group) for group in in_threes[1]} == {2}
    for groups in (*apart, *in_threes):
        assert sorted(i for group in groups for i in group) == everyone


def test_arcs_that_do_not_hold_the_model_are_left_out(
    home: Fleet, make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    problem = SearchProblem(home, make_model(), make_workload(), tuple(range(len(home.nodes))), 2, 0)
    fit = MemoryFit(home, SpanCosts(problem.costs, problem.work), 2)
    assert list(SearchContext(problem, fit).groupings(problem.able, len(home.nodes), 2)) == []


def test_the_problem_of_a_part_has_no_other_nodes_unless_there_are_constraints(given: SearchContext) -> None:
    problem = given.problem
    part = problem.of_part((1, 3))
    assert (part.fleet.names, part.able) == ((problem.fleet.names[1], problem.fleet.names[3]), (0, 1))
    bound = replace(problem, fleet=replace(problem.fleet, constraints=Constraints(min_clusters=2)))
    part = bound.of_part((1, 3))
    assert (part.fleet, part.able) == (bound.fleet, (1, 3))
