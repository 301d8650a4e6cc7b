"""What the advice of a plan says of planning anew where no change gains with the cuts that the plan has."""

from collections.abc import Callable

import pytest

from cluster_planner import planner
from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.plan import Plan
from cluster_planner.planner import make_plan, with_advice_planned


@pytest.fixture
def balanced(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> Plan:
    """Two equal nodes with half of the model each."""
    fleet = Fleet((make_node("a"), make_node("b")))
    return make_plan(fleet, make_model(12), make_workload(), job={"seed": 0}, job_file="job.yaml", min_stages=2)


def test_a_balanced_plan_is_told_what_a_faster_node_brings_with_other_cuts(balanced: Plan) -> None:
    """It was told that nothing helps, and with 8 of 12 units the faster node brings a third."""
    assert balanced.predicted.advice.startswith("no single machine or link holds the fleet back")
    said = with_advice_planned(balanced).predicted.advice.removeprefix(balanced.predicted.advice)
    assert said.startswith("; planned anew after doubling ")
    worth = float(said.rpartition("(worth ")[2].rstrip(")").replace(",", ""))
    assert worth > 1.2 * balanced.predicted.objective


def test_a_larger_balanced_plan_is_not_planned_anew(balanced: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "MOST_NODES_TO_PLAN_ANEW", 1)
    assert with_advice_planned(balanced) is balanced
