import itertools
from collections.abc import Callable

import numpy as np
import pytest

from cluster_planner.inputs.constraints import Constraints
from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.search.candidates import Assembler
from cluster_planner.search.estimates import Group
from cluster_planner.search.partitions import KEPT, Divisions, best_partitions
from cluster_planner.search.search_context import SearchProblem


def every_division(nodes: list[int], clusters: int) -> list[tuple[Group, ...]]:
    found = {
        tuple(sorted(tuple(n for n, label in zip(nodes, labels, strict=True) if label == c) for c in range(clusters)))
        for labels in itertools.product(range(clusters), repeat=len(nodes))
    }
    return [groups for groups in found if all(groups)]


@pytest.mark.parametrize(("clusters", "least"), [(1, 1), (2, 2), (3, 1), (3, 2)])
def test_the_best_of_all_divisions_is_found(clusters: int, least: int) -> None:
    nodes = [2, 3, 5, 7, 8, 9]
    random = np.random.default_rng(clusters)
    worth: dict[Group, float] = {}

    def value_of(group: Group) -> float:
        return worth.setdefault(group, float(random.choice([0.0, random.uniform()])))

    found = best_partitions(nodes, clusters, least, value_of)
    sums = [
        sum(value_of(group) for group in groups)
        for groups in every_division(nodes, clusters)
        if all(len(group) >= least and value_of(group) > 0 for group in groups)
    ]
    assert [sum(map(value_of, groups)) for groups in found] == pytest.approx(sorted(sums, reverse=True)[: len(found)])
    assert len(found) == min(KEPT, len(sums))


def test_groups_worth_nothing_are_no_groups() -> None:
    assert best_partitions([0, 1, 2], 2, 1, lambda group: 0.0) == ()


def test_only_groups_that_leave_the_others_enough_nodes_are_asked_for() -> None:
    asked = set[Group]()

    def value_of(group: Group) -> float:
        asked.add(group)
        return 1.0

    best_partitions(range(7), 3, 2, value_of)
    assert {len(group) for group in asked} == {2, 3}


def test_only_groups_that_may_be_in_one_of_the_best_divisions_are_worked_out() -> None:
    nodes, asked = range(6), set[Group]()
    random = np.random.default_rng(0)
    worth: dict[Group, float] = {}

    def at_most(group: Group) -> float:
        return 1.1 * worth.setdefault(group, len(group) * float(random.uniform(0.5, 1.0)))

    def value_of(group: Group) -> float:
        asked.add(group)
        return at_most(group) / 1.1

    found = best_partitions(nodes, 2, 1, value_of, at_most=at_most)
    few = len(asked)
    assert found == best_partitions(nodes, 2, 1, value_of)
    assert few < len(asked) / 2


@pytest.fixture
def problem(
    request: pytest.FixtureRequest,
    make_node: Callable[..., Node],
    make_model: Callable[..., ModelCosts],
    make_workload: Callable[..., Workload],
) -> SearchProblem:
    fleet = Fleet(tuple(make_node(f"n{i}") for i in range(4)), constraints=Constraints(forbid=request.param))
    return SearchProblem(fleet, make_model(4), make_workload(), (0, 1, 2, 3), 1, 0)


def divisions_of(problem: SearchProblem) -> Divisions:
    return Divisions(problem, Assembler(problem.fleet, SpanCosts(problem.costs, problem.work), 1))


@pytest.mark.parametrize("problem", [(), (("n0", "n2"),)], indirect=True)
def test_a_problem_is_divided_into_every_number_of_clusters_as_rules_allow(problem: SearchProblem) -> None:
    found = list(divisions_of(problem).best(100.0, lambda: 0.0))
    assert {len(groups) for groups in found} == {1, 2, 3, 4}
    together = [set(group) >= {0, 2} for groups in found for group in groups]
    assert any(together) == (not problem.fleet.constraints.forbid)


@pytest.mark.parametrize("problem", [()], indirect=True)
def test_numbers_of_clusters_that_cannot_be_worth_more_are_not_divided_into(problem: SearchProblem) -> None:
    divisions = divisions_of(problem)
    assert list(divisions.best(100.0, divisions.most)) == []
    assert len({len(groups) for groups in divisions.best(100.0, lambda: divisions.most() * 0.999)}) == 1
    best = Assembler(problem.fleet, SpanCosts(problem.costs, problem.work), 1).candidate([(n,) for n in ("n0", "n1")])
    assert best is not None
    assert best.objective <= divisions.most()
