from collections.abc import Callable

import pytest

from cluster_planner.costs import ModelCosts, Workload
from cluster_planner.fleet import Fleet, Node
from cluster_planner.order import EXACT_NODES
from cluster_planner.pipeline import largest_fitting_window, plan_pipeline
from cluster_planner.plan import Stage
from cluster_planner.spans import SpanCosts


@pytest.fixture
def spans(make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]) -> SpanCosts:
    return SpanCosts(make_model(12), make_workload())


def test_a_faster_node_gets_more_units(make_node: Callable[..., Node], spans: SpanCosts) -> None:
    fleet = Fleet((make_node("slow"), make_node("fast", flops_per_s=2e10)))
    found = plan_pipeline(fleet, spans, fleet.names, 0.0, 2)
    assert found is not None
    sizes = {stage.node: stage.units[1] - stage.units[0] for stage in found.stages}
    assert sizes == {"slow": 4, "fast": 8}


def test_memory_overrules_speed(make_node: Callable[..., Node], spans: SpanCosts) -> None:
    small = spans.memory_bytes(0, 3, 1)
    fleet = Fleet((make_node("large"), make_node("fast", flops_per_s=9e10, memory_bytes=small)))
    found = plan_pipeline(fleet, spans, fleet.names, 0.0, 2)
    assert found is not None
    for stage in found.stages:
        assert spans.memory_bytes(*stage.units, found.window) <= fleet.node(stage.node).memory_bytes


def test_what_does_not_fit_has_no_pipeline(make_node: Callable[..., Node], spans: SpanCosts) -> None:
    fleet = Fleet(tuple(make_node(n, memory_bytes=spans.memory_bytes(0, 5, 1)) for n in "ab"))
    assert plan_pipeline(fleet, spans, fleet.names, 0.0, 2) is None


@pytest.mark.parametrize("others", [2, EXACT_NODES + 2])
def test_a_node_that_would_slow_the_pipeline_is_left_out(
    make_node: Callable[..., Node], spans: SpanCosts, others: int
) -> None:
    crawling = make_node("phone", flops_per_s=1e6)
    fleet = Fleet((*(make_node(f"n{i}") for i in range(others)), crawling))
    found = plan_pipeline(fleet, spans, fleet.names, 0.0, 2)
    assert found is not None
    assert "phone" not in [stage.node for stage in found.stages]


def test_a_required_node_is_used(make_node: Callable[..., Node], spans: SpanCosts) -> None:
    fleet = Fleet((make_node("a"), make_node("b"), make_node("phone", flops_per_s=1e6)))
    found = plan_pipeline(fleet, spans, fleet.names, 0.0, 2, required="phone")
    assert found is not None
    assert "phone" in [stage.node for stage in found.stages]


def test_the_window_shrinks_to_the_memory(make_node: Callable[..., Node], spans: SpanCosts) -> None:
    fleet = Fleet((make_node("a", memory_bytes=spans.memory_bytes(0, 6, 3)), make_node("b")))
    stages = (Stage("a", (0, 6)), Stage("b", (6, 12)))
    assert largest_fitting_window(fleet, spans, stages, 8) == 3
    assert largest_fitting_window(fleet, spans, stages, 2) == 2
