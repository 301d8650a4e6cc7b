import math
from collections.abc import Callable

import pytest

from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.links import Link
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.plan import Stage
from cluster_planner.predict.stage_times import (
    bottleneck_s,
    loads_of,
    period_s,
    round_trip_s,
    wanted_window,
    work_times,
)


@pytest.fixture
def spans(make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]) -> SpanCosts:
    costs = make_model(3, flops=10.0, parameter_bytes=0, boundary_bytes=6, boundary_gradient_bytes=4)
    return SpanCosts(costs, make_workload(micro_batch=1))


@pytest.fixture
def fleet(make_node: Callable[..., Node]) -> Fleet:
    nodes = tuple(make_node(n, flops_per_s=10.0, up_bytes_per_s=2.0, down_bytes_per_s=8.0) for n in "abc")
    return Fleet(nodes, tuple(Link(x, y, 0.5, 1.0) for x, y in ("ab", "bc", "ac")))


STAGES = (Stage("a", (0, 1)), Stage("b", (1, 2)), Stage("c", (2, 3)))


def test_a_middle_stage_sends_activations_on_and_gradients_back(fleet: Fleet, spans: SpanCosts) -> None:
    first, middle, last = loads_of(fleet, spans, STAGES)
    assert (first.up_bytes, first.down_bytes) == (6, 4)
    assert (middle.up_bytes, middle.down_bytes) == (6 + 4, 6 + 4)
    assert (last.up_bytes, last.down_bytes) == (4, 6)
    assert middle.compute_s == 3.0
    assert (middle.send_s, middle.send_to) == (6.0, "c")


def test_occupancy_has_no_latency_and_the_round_trip_has(fleet: Fleet, spans: SpanCosts) -> None:
    assert bottleneck_s(fleet, STAGES, loads_of(fleet, spans, STAGES), 0.0) == 6.0
    assert round_trip_s(fleet, spans, STAGES) == 3 * 3.0 + 2 * (2 * 0.5 + 6 / 1 + 4 / 1)


def test_a_slow_uplink_is_shared_by_both_directions(make_node: Callable[..., Node], spans: SpanCosts) -> None:
    nodes = tuple(make_node(n, flops_per_s=1e9, up_bytes_per_s=2.0, down_bytes_per_s=8.0) for n in "abc")
    fleet = Fleet(nodes)
    assert bottleneck_s(fleet, STAGES, loads_of(fleet, spans, STAGES), 0.0) == 10 / 2


def test_nodes_of_one_host_share_an_uplink_but_not_among_themselves(
    make_node: Callable[..., Node], spans: SpanCosts
) -> None:
    box = {"host": "box", "flops_per_s": 1e9, "up_bytes_per_s": 2.0, "down_bytes_per_s": 8.0}
    fleet = Fleet((make_node("a", **box), make_node("b", **box), make_node("c", up_bytes_per_s=1e9)))
    loads = loads_of(fleet, spans, STAGES)
    assert (loads[0].up_bytes, loads[1].up_bytes) == (0, 6)
    apart = (Stage("a", (0, 1)), Stage("c", (1, 2)), Stage("b", (2, 3)))
    assert bottleneck_s(fleet, apart, loads_of(fleet, spans, apart), 0.0) == (6 + 4) / 2


def test_averaging_takes_its_share_of_the_uplink(
    fleet: Fleet, make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    spans = SpanCosts(make_model(3, flops=0.0, parameter_bytes=30, boundary_bytes=0), make_workload(micro_batch=1))
    loads = loads_of(fleet, spans, STAGES)
    middle = loads[1].up_bytes
    assert bottleneck_s(fleet, STAGES, loads, 0.01) == max(middle / (2.0 - 0.01 * 30), loads[1].send_s)
    assert bottleneck_s(fleet, STAGES, loads, 0.1) == math.inf  # 3 bytes/s of an uplink of 2


@pytest.mark.parametrize(
    ("bottleneck", "trip", "window"), [(1.0, 3.0, 5), (1.0, 3.1, 6), (1.0, 100.0, 8), (0.0, 0.0, 8), (5.0, 0.0, 2)]
)
def test_the_window_covers_the_round_trip_within_staleness(
    make_workload: Callable[..., Workload], bottleneck: float, trip: float, window: int
) -> None:
    assert wanted_window(bottleneck, trip, make_workload(update_every=4, max_staleness=1)) == window
    assert wanted_window(bottleneck, trip, make_workload(update_every=1, max_staleness=0)) == 1


def test_a_full_window_runs_at_the_bottleneck(make_workload: Callable[..., Workload]) -> None:
    assert period_s(1.0, 3.0, 5, make_workload()) == 1.0


def test_a_small_window_waits_for_the_round_trip(make_workload: Callable[..., Workload]) -> None:
    assert period_s(1.0, 30.0, 5, make_workload(update_every=100)) == 6.0


def test_synchronous_updates_pay_fill_and_drain(make_workload: Callable[..., Workload]) -> None:
    work = make_workload(update_every=4, max_staleness=0)
    assert math.isclose(period_s(1.0, 3.0, 4, work), (3 * 1.0 + 3.0) / 4)


@pytest.mark.parametrize("recomputes", [False, True])
def test_the_pieces_of_a_stage_s_work_add_up_to_its_compute(
    make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload], fleet: Fleet, recomputes: bool
) -> None:
    spans = SpanCosts(make_model(3, flops=10.0, parameter_bytes=7), make_workload(micro_batch=2, update_every=4))
    stages = (Stage("a", (0, 1), recomputes), *STAGES[1:])
    times, load = work_times(fleet, spans, stages[0]), loads_of(fleet, spans, stages)[0]
    assert times.update_s > 0
    assert times.forward_s + times.backward_s + times.update_s / 4 == pytest.approx(load.compute_s)
    assert times.input_gradients_s + times.weight_gradients_s == times.backward_s
