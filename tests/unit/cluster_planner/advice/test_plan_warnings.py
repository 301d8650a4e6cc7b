from collections.abc import Callable
from dataclasses import replace

import pytest

from cluster_planner.advice.plan_warnings import better_single_node, demands_beside, outdated, predicted_again
from cluster_planner.inputs.constraints import LAST, Constraints, Pin, hours_from
from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.plan import Cluster, Plan, Stage
from cluster_planner.planner import make_plan
from tests.unit.ravnest.simulator.test_fleet import home_plan


def planned(fleet: Fleet, costs: ModelCosts, work: Workload) -> Plan:
    return make_plan(fleet, costs, work, job={"seed": 0}, job_file="job.yaml", min_stages=2)


def test_a_fast_node_beside_a_slow_one_makes_what_a_plan_of_it_alone_makes(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    costs, work = make_model(8), make_workload()
    big, small = make_node("big", flops_per_s=1e12), make_node("small", up_bytes_per_s=1e4)
    both = planned(Fleet((small, big)), costs, work)
    found = better_single_node(both.fleet, SpanCosts(costs, work), both.clusters, both.predicted.objective)
    assert found is not None
    alone = planned(Fleet((big,)), costs, work)
    assert found.node == "big"
    assert found.samples_per_s == alone.predicted.samples_per_s
    assert found.worth == alone.predicted.objective > 20 * both.predicted.objective
    assert better_single_node(alone.fleet, SpanCosts(costs, work), alone.clusters, 0.0) is None


def test_only_a_node_with_memory_for_the_whole_model_and_only_if_it_is_worth_more(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    spans = SpanCosts(make_model(8), make_workload())
    fleet = Fleet(
        (
            make_node("fast", flops_per_s=1e12, memory_bytes=1.5e8),
            make_node("roomy"),
            make_node("slow", flops_per_s=1e9),
        )
    )
    clusters = [Cluster("c0", 4, (Stage("fast", (0, 4)), Stage("roomy", (4, 8))))]
    found = better_single_node(fleet, spans, clusters, 0.01)
    assert found is not None
    assert found.node == "roomy"
    assert better_single_node(fleet, spans, clusters, found.worth) is None
    assert better_single_node(fleet, spans, clusters, found.worth * 0.999) == found


def test_a_node_that_is_seldom_there_is_worth_as_much_less(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    spans = SpanCosts(make_model(8), make_workload())
    fleet = Fleet((make_node("seldom", flops_per_s=2e10, hours=hours_from("3-9")), make_node("always")))
    clusters = [Cluster("c0", 4, (Stage("seldom", (0, 4)), Stage("always", (4, 8))))]
    found = better_single_node(fleet, spans, clusters, 0.01)
    assert found is not None
    assert found.node == "always"
    seldom = better_single_node(Fleet(fleet.nodes[:1]), spans, clusters, 0.01)
    assert seldom is not None
    assert seldom.worth == pytest.approx(seldom.samples_per_s / 4)


def test_what_keeps_a_node_from_being_the_whole_plan_is_what_was_demanded(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    plan = planned(Fleet((make_node("big"), make_node("small"))), make_model(8), make_workload())
    assert demands_beside(plan, "big") == ["--min-stages"]
    free = replace(plan, min_stages=1)
    assert demands_beside(free, "big") == []

    def under(constraints: Constraints) -> list[str]:
        return demands_beside(replace(free, fleet=replace(plan.fleet, constraints=constraints)), "big")

    assert under(Constraints(min_clusters=2)) == ["constraints.min_clusters"]
    assert under(Constraints(pins=(Pin("small", stage=0),))) == ["constraints.pin"]
    assert under(Constraints(pins=(Pin("big", stage=1),))) == ["constraints.pin"]
    assert under(Constraints(pins=(Pin("big", stage=LAST),))) == []


def test_a_plan_of_an_earlier_version_is_given_what_it_lacks_and_is_not_called_outdated() -> None:
    plan = predicted_again(home_plan())
    assert plan.predicted.loaded_averaging_s is not None
    old = replace(plan, predicted=replace(plan.predicted, loaded_averaging_s=None))
    again = predicted_again(old)
    assert again.predicted == plan.predicted
    assert outdated(old, again) is None
