""" """

from collections.abc import Callable

import numpy as np
import pytest

from cluster_planner import Fleet, ModelCosts, Node, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.search.group_pipelines import FAR, NOBODY, GroupCosts, costs_of, mates, shared_rates, shares

GROUPS = np.array([[0, 1, 5], [2, 3, NOBODY]]).T
"""Two groups of the fleet `home`, one in each column."""


@pytest.fixture
def spans(make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]) -> SpanCosts:
    return SpanCosts(make_model(6), make_workload())


@pytest.fixture
def costs(home: Fleet, spans: SpanCosts) -> GroupCosts:
    return costs_of(home.arrays, spans, GROUPS, 0.0)


def test_stages_and_hops_cost_what_the_fleet_says(home: Fleet, spans: SpanCosts, costs: GroupCosts) -> None:
    compute, longest = costs.stages(costs.fits(1))
    slow, fast = home.nodes[5], home.nodes[0]
    assert compute[1, 4, costs.entry[2, 0]] == pytest.approx(spans.flops(1, 4) / slow.flops_per_s)
    assert (longest >= compute).all()
    trips, hops = costs.hops(np.array([[0, 0]]), np.array([[2, 1]]))
    link = home.link(fast.name, slow.name)
    sending = spans.forward_bytes[3] / home.flow_bytes_per_s(fast.name, slow.name)
    coming = spans.gradient_bytes[3] / home.flow_bytes_per_s(slow.name, fast.name)
    assert trips[0, 3, 0] == pytest.approx(2 * link.latency_s + sending + coming)
    assert hops[0, 3, 0] == pytest.approx(max(sending, coming))


def test_nobody_has_no_units_no_cost_and_is_far_from_all(costs: GroupCosts) -> None:
    nobody = costs.entry[2, 1]
    _, longest = costs.stages(costs.fits(8))
    idle = np.where(np.eye(len(longest), dtype=bool), 0.0, np.inf)
    assert longest[..., nobody].tolist() == idle.tolist()
    trips, hops = costs.hops(np.array([[1]]), np.array([[2]]))
    assert not trips[0, :, 1].any()
    assert not hops[0, :, 1].any()
    assert (costs.distances()[:, 2, 1] == FAR).all()
    assert costs.fastest[1] == costs.speed[0, 1]


def test_what_does_not_fit_takes_for_ever(make_node: Callable[..., Node], spans: SpanCosts) -> None:
    fleet = Fleet((make_node("large"), make_node("small", memory_bytes=spans.memory_bytes(0, 2, 1))))
    costs = costs_of(fleet.arrays, spans, np.array([[0], [1]]), 0.0)
    compute, _ = costs.stages(costs.fits(1))
    large, small = costs.entry[:, 0]
    assert np.isfinite(compute[0, 3, large])
    assert np.isfinite(compute[0, 2, small])
    assert np.isinf(compute[0, 3, small])


def test_rows_can_be_left_out(costs: GroupCosts) -> None:
    second = costs.of(np.array([False, True]))
    assert second.entry.tolist() == costs.entry[:, 1:].tolist()
    assert second.latency_s.tolist() == costs.latency_s[..., 1:].tolist()
    assert costs.of(np.array([True, True])) is costs


@pytest.fixture
def fleet(make_node: Callable[..., Node]) -> Fleet:
    rates = {"up_bytes_per_s": 4.0, "down_bytes_per_s": 8.0}
    boxed = [make_node(f"gpu{i}", host="box", **rates) for i in range(4)]
    return Fleet((*boxed, make_node("alone", up_bytes_per_s=2.0, down_bytes_per_s=16.0)))


def test_a_group_has_as_much_of_the_links_as_of_the_hosts_nodes(fleet: Fleet) -> None:
    at = np.array([[0, 0, 4], [4, 1, NOBODY]])
    together = mates(fleet.arrays, at)
    assert together.T.tolist() == [[1, 1], [2, 2], [1, 1]]
    assert shares(fleet.arrays, at, together).T.tolist() == [[0.25, 1.0], [0.5, 0.5], [1.0, 1.0]]


def test_hops_that_leave_a_host_have_its_part_and_others_no_limit(fleet: Fleet) -> None:
    rates = shared_rates(fleet.arrays, np.array([[0], [1], [4]]))[..., 0]
    assert rates[0, 1] == rates[1, 0] == np.inf
    assert rates[0, 2] == 4.0 / 2
    assert rates[2, 0] == 2.0  # what the other sends; half of a downlink of 8 is more
