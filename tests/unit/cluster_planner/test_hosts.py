from collections.abc import Callable

import numpy as np
import pytest

from cluster_planner import Fleet, Node
from cluster_planner.hosts import shared_hops, shares


@pytest.fixture
def fleet(make_node: Callable[..., Node]) -> Fleet:
    rates = {"up_bytes_per_s": 4.0, "down_bytes_per_s": 8.0}
    boxed = [make_node(f"gpu{i}", host="box", **rates) for i in range(4)]
    return Fleet((*boxed, make_node("alone", up_bytes_per_s=2.0, down_bytes_per_s=16.0)))


def test_a_group_has_as_much_of_the_links_as_of_the_hosts_nodes(fleet: Fleet) -> None:
    assert shares(fleet.sites, np.array([[0, 4], [0, 1]])).tolist() == [[0.25, 1.0], [0.5, 0.5]]


def test_hops_that_leave_a_host_take_longer_and_others_nothing(fleet: Fleet) -> None:
    hops = shared_hops(fleet.sites, np.array([[0, 1, 4]]), np.array([8.0]), np.array([4.0]))[0, ..., 0]
    assert hops[0, 1] == hops[1, 0] == 0.0
    assert hops[0, 2] == 8.0 / 2.0  # half of an uplink of 4; back: 4 bytes over an uplink of 2
    assert hops[2, 0] == 8.0 / 2.0
