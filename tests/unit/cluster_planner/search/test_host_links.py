from collections.abc import Callable

import numpy as np
import pytest

from cluster_planner import Fleet, Node
from cluster_planner.search.host_links import NOBODY, mates, shared_rates, shares


@pytest.fixture
def fleet(make_node: Callable[..., Node]) -> Fleet:
    rates = {"up_bytes_per_s": 4.0, "down_bytes_per_s": 8.0}
    boxed = [make_node(f"gpu{i}", host="box", **rates) for i in range(4)]
    return Fleet((*boxed, make_node("alone", up_bytes_per_s=2.0, down_bytes_per_s=16.0)))


def test_a_group_has_as_much_of_the_links_as_of_the_hosts_nodes(fleet: Fleet) -> None:
    at = np.array([[0, 0, 4], [4, 1, NOBODY]])
    together = mates(fleet.sites, at)
    assert together.T.tolist() == [[1, 1], [2, 2], [1, 1]]
    assert shares(fleet.sites, at, together).T.tolist() == [[0.25, 1.0], [0.5, 0.5], [1.0, 1.0]]


def test_hops_that_leave_a_host_have_its_part_and_others_no_limit(fleet: Fleet) -> None:
    rates = shared_rates(fleet.sites, np.array([[0], [1], [4]]))[..., 0]
    assert rates[0, 1] == rates[1, 0] == np.inf
    assert rates[0, 2] == 4.0 / 2
    assert rates[2, 0] == 2.0  # what the other sends; half of a downlink of 8 is more
