from collections.abc import Callable
from dataclasses import replace

import pytest

from cluster_planner import planner
from cluster_planner.advice.lean_optimizer import WITH_IT, may_gain, without_optimizer_state
from cluster_planner.errors import NoFeasiblePlan
from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.plan import Plan
from cluster_planner.planner import make_plan, with_advice_planned


def planned(fleet: Fleet, costs: ModelCosts, work: Workload) -> Plan:
    return make_plan(fleet, costs, work, job={}, job_file="job.yaml")


@pytest.fixture
def costs(make_model: Callable[..., ModelCosts]) -> ModelCosts:
    return make_model(8, parameter_bytes=10**7)


def fleet_of(make_node: Callable[..., Node], memory_bytes: int) -> Fleet:
    return Fleet(tuple(make_node(f"n{i}", memory_bytes=memory_bytes) for i in range(4)))


def test_what_an_optimizer_keeps_to_the_byte_is_dropped_too(
    costs: ModelCosts, make_workload: Callable[..., Workload]
) -> None:
    known = replace(costs, units=tuple(replace(unit, optimizer_bytes=7) for unit in costs.units))
    lean, work = without_optimizer_state(known, make_workload())
    assert lean == costs
    assert [work.optimizer_beyond_ratio(unit) for unit in lean.units] == [0.0] * 8
    assert work == make_workload(optimizer_state_bytes_per_parameter_byte=0.0)


def test_where_memory_limits_the_gain_without_the_optimizers_state_is_said(
    costs: ModelCosts, make_node: Callable[..., Node], make_workload: Callable[..., Workload]
) -> None:
    work = make_workload()
    plan = planned(fleet_of(make_node, 360 * 10**6), costs, work)
    assert may_gain(plan)
    advised = with_advice_planned(plan).predicted.advice
    lean = planned(plan.fleet, *without_optimizer_state(costs, work)).predicted
    assert lean.objective > 1.01 * plan.predicted.objective
    assert f"with {WITH_IT}, if training learns as well with it, planned anew, " in advised
    assert f"(worth {lean.objective:.3g})" in advised


def test_what_planning_anew_brings_is_found_without_a_search_of_all(
    costs: ModelCosts,
    make_node: Callable[..., Node],
    make_workload: Callable[..., Workload],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of ten nodes that hold the model twice only without the optimizer's states: from the plan nothing leads there."""
    work = make_workload()
    fleet = Fleet(tuple(make_node(f"n{i}", memory_bytes=250 * 10**6) for i in range(10)))
    plan = planned(fleet, costs, work)
    lean = planned(fleet, *without_optimizer_state(costs, work))
    assert len(lean.clusters) > len(plan.clusters)

    def unwanted(*_: object, **__: object) -> Plan:
        raise AssertionError

    monkeypatch.setattr(planner, "make_plan", unwanted)
    words = with_advice_planned(plan).predicted.advice.rpartition("(worth ")[2].rstrip(")")
    assert float(words) == pytest.approx(lean.predicted.objective, rel=0.02)


def test_nothing_is_said_where_there_is_room_or_nothing_to_drop(
    costs: ModelCosts, make_node: Callable[..., Node], make_workload: Callable[..., Workload]
) -> None:
    roomy = planned(fleet_of(make_node, 10**10), costs, make_workload())
    assert not may_gain(roomy)
    assert WITH_IT not in with_advice_planned(roomy).predicted.advice
    plain = make_workload(optimizer_state_bytes_per_parameter_byte=0.0)
    assert not may_gain(planned(fleet_of(make_node, 360 * 10**6), costs, plain))


def test_an_error_says_whether_the_model_would_fit_without_it(
    costs: ModelCosts, make_node: Callable[..., Node], make_workload: Callable[..., Workload]
) -> None:
    with pytest.raises(NoFeasiblePlan, match=f"; with {WITH_IT}, they would hold it"):
        planned(fleet_of(make_node, 230 * 10**6), costs, make_workload(max_staleness=0))
    with pytest.raises(NoFeasiblePlan) as raised:
        planned(fleet_of(make_node, 150 * 10**6), costs, make_workload(max_staleness=0))
    assert WITH_IT not in raised.value.message
