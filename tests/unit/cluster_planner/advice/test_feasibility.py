from collections.abc import Callable

import pytest

from cluster_planner.advice.feasibility import require_feasible
from cluster_planner.errors import NoFeasiblePlan
from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.memory_fit import MemoryFit


def judged(fleet: Fleet, costs: ModelCosts, work: Workload, least: int) -> None:
    memory_fit = MemoryFit(fleet, SpanCosts(costs, work), least)
    able = [name for name in fleet.names if memory_fit.holds_a_unit(name)]
    require_feasible(fleet, costs, memory_fit, able, least)


def test_what_fits_passes(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    judged(Fleet((make_node("a"), make_node("b"))), make_model(4), make_workload(), 2)


def test_what_is_lacking_is_said(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    small = Fleet((make_node("a", memory_bytes=1), make_node("b", memory_bytes=1)))
    with pytest.raises(NoFeasiblePlan, match="no node has memory for any unit"):
        judged(small, make_model(4), make_workload(), 2)
    with pytest.raises(NoFeasiblePlan, match="cannot be cut into 3 stages"):
        judged(Fleet((make_node("a"), make_node("b"))), make_model(2), make_workload(), 3)
