"""A small model on two nodes that each hold it: a round takes longer than its samples."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from cluster_planner.advice.rarer_rounds import Planned, idle_nodes, said
from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.plan import Plan
from cluster_planner.planner import make_plan, with_advice_planned

BETWEEN = "rounds are too near to each other for more clusters"


def planned(fleet: Fleet, costs: ModelCosts, work: Workload) -> Plan:
    return make_plan(fleet, costs, work, job={}, job_file="job.yaml")


@pytest.fixture
def starved_of(
    make_model: Callable[..., ModelCosts], make_node: Callable[..., Node], make_workload: Callable[..., Workload]
) -> Callable[[int], Plan]:
    def of(count: int) -> Plan:
        fleet = Fleet(tuple(make_node(f"n{i}", memory_bytes=10**10) for i in range(count)))
        return planned(fleet, make_model(2, flops=8e4, parameter_bytes=140_000), make_workload())

    return of


@pytest.fixture
def starved(starved_of: Callable[[int], Plan]) -> Plan:
    return starved_of(2)


def test_more_nodes_stand_idle_because_of_averaging_and_are_told_too(starved_of: Callable[[int], Plan]) -> None:
    starved = starved_of(9)
    assert len(starved.spares) > 4
    advised = with_advice_planned(starved).predicted.advice
    assert BETWEEN in advised
    assert "more nodes train too" in advised


def test_who_stands_idle_because_of_averaging_is_said_with_the_round_that_helps(starved: Plan) -> None:
    assert idle_nodes(starved) == [spare.node for spare in starved.spares]
    assert len(starved.spares) == 1
    advised = with_advice_planned(starved).predicted.advice
    assert BETWEEN in advised
    assert f"{starved.spares[0].node} trains too" in advised
    value = int(advised.partition("with average_every ")[2].split()[0])
    better = planned(starved.fleet, starved.costs, replace(starved.workload, average_every=value))
    assert better.spares == ()
    assert better.predicted.objective > 1.2 * starved.predicted.objective


def test_no_round_is_advised_that_training_is_too_short_for(starved: Plan) -> None:
    assert BETWEEN not in with_advice_planned(starved, trained_samples=1.0).predicted.advice


def test_one_planning_says_that_rounds_are_not_the_cause(starved: Plan) -> None:
    tried: list[int] = []

    def no_better(work: Workload) -> Planned:
        tried.append(work.average_every)
        return starved.clusters, starved.predicted

    assert said(starved, no_better) == ""
    assert len(tried) == 1
    assert said(starved, lambda _: None) == "", "no plan was found"


def test_nothing_is_planned_where_all_nodes_train(starved: Plan) -> None:
    def never(_: Workload) -> Planned:
        raise AssertionError("it planned")

    assert said(replace(starved, spares=()), never) == ""
