from collections.abc import Callable

import pytest

from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.predict.objective import STALENESS_COST
from cluster_planner.predict.upper_bound import best_possible
from cluster_planner.search.candidates import Assembler


def test_equal_nodes_with_nothing_to_send_can_reach_the_bound_of_one_cluster(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    costs = make_model(8, parameter_bytes=0, boundary_bytes=0, boundary_gradient_bytes=0)
    spans = SpanCosts(costs, make_workload(max_staleness=0, update_every=1000, average_every=10**9))
    fleet = Fleet((make_node("a"), make_node("b")))
    alone = 4 * 1e10 / (3 * 8e8 * 4)  # samples/s of one node
    assert best_possible(fleet, spans, (0, 1), 2) == pytest.approx(2 * alone)


def test_staleness_lowers_it(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    fleet = Fleet(tuple(make_node(f"n{i}") for i in range(8)))
    costs = make_model(8, parameter_bytes=0, boundary_bytes=0, boundary_gradient_bytes=0)
    bounds = [
        best_possible(fleet, SpanCosts(costs, make_workload(max_staleness=s, update_every=4)), range(8), 8)
        for s in (0, 1)
    ]
    # One cluster of eight nodes: with S = 0 no more than four micro-batches are in flight.
    assert bounds[0] == pytest.approx(4 * 1e10 / (3 * 8e8), rel=1e-3)
    assert bounds[0] < bounds[1] < 2 * bounds[0] / (1 + STALENESS_COST / 2)


@pytest.mark.parametrize("least", [1, 2])
def test_slow_uplinks_lower_it_where_no_node_may_be_a_cluster(
    least: int,
    make_node: Callable[..., Node],
    make_model: Callable[..., ModelCosts],
    make_workload: Callable[..., Workload],
) -> None:
    spans = SpanCosts(make_model(8), make_workload())
    bounds = [
        best_possible(
            Fleet(tuple(make_node(n, up_bytes_per_s=up, memory_bytes=15 * 10**7) for n in "abcd")),
            spans,
            range(4),
            least,
        )
        for up in (5e6, 1e4)
    ]
    assert bounds[1] < 0.5 * bounds[0]


@pytest.mark.parametrize(("average_every", "max_lag"), [(1, 1), (64, 2), (1024, 1), (8192, 2)])
def test_no_plan_that_waits_for_its_averaging_is_above_it(
    make_node: Callable[..., Node],
    make_model: Callable[..., ModelCosts],
    make_workload: Callable[..., Workload],
    average_every: int,
    max_lag: int,
) -> None:
    names = "abcdef"
    rates = {"flops_per_s": 1e12, "down_bytes_per_s": 1e6}
    fleet = Fleet(tuple(make_node(n, up_bytes_per_s=1e5 * (1 + i), **rates) for i, n in enumerate(names)))
    spans = SpanCosts(make_model(6), make_workload(average_every=average_every, max_lag=max_lag))
    assembler, bound = Assembler(fleet, spans, 1), best_possible(fleet, spans, range(6), 1)
    kinds = set()
    for groups in (tuple(names), ("ab", "cd", "ef"), ("abc", "def"), ("af", "be", "cd"), ("a", "b", "cdef")):
        found = assembler.candidate([tuple(group) for group in groups])
        assert found is not None
        assert found.objective <= bound * (1 + 1e-9)
        kinds |= {limit.kind for limit in found.forecast.limits}
    assert "averaging" in kinds
