import math

import pytest

from ravnest.collaboration.fixed_ways import fixed_ways, groups, ring, ring_bound
from ravnest.collaboration.links import Collaboration, PeerLinks


def given(*rates: float, pairs: dict[tuple[str, str], float] | None = None) -> Collaboration:
    peers = tuple(PeerLinks(f"p{place}", rate, rate, 1.0) for place, rate in enumerate(rates))
    return Collaboration(peers, 100.0, 1.0, pairs or {})


def test_equal_links_in_closed_form() -> None:
    ways = fixed_ways(given(*[100.0] * 4))
    assert ways["ring"] == pytest.approx(4 / 6)
    assert ways["equal parts"] == pytest.approx(4 / 6)
    assert ways["one server"] == pytest.approx(1 / 3)
    assert ways["direct"] == pytest.approx(1 / 3)


def test_a_server_is_the_peer_with_the_best_link() -> None:
    assert fixed_ways(given(1000.0, *[100.0] * 4))["one server"] == pytest.approx(1.0)


def test_a_ring_avoids_a_pair_that_cannot_connect() -> None:
    apart = {("p0", "p1"): 0.0, ("p1", "p0"): 0.0}
    assert ring(given(*[100.0] * 4, pairs=apart), range(4)) == pytest.approx(4 / 6)
    assert fixed_ways(given(*[100.0] * 4, pairs=apart))["direct"] == 0.0


def test_a_ring_of_many_is_improved_by_exchanges() -> None:
    count = 9
    near = {
        (f"p{one}", f"p{other}"): 1.0
        for one in range(count)
        for other in range(count)
        if one != other and (one - other) % 3
    }
    # Members of one residue reach each other well; some hops between residues are unavoidable.
    assert ring(given(*[100.0] * count, pairs=near), range(count)) > 0
    assert ring(given(*[100.0] * count), range(count)) == pytest.approx(count / (2 * (count - 1)))


def test_no_ring_exceeds_the_bound_of_its_members_best_hops() -> None:
    slow = {("p0", "p1"): 5.0, ("p0", "p2"): 9.0, ("p0", "p3"): 7.0}
    world = given(*[100.0] * 4, pairs=slow)
    assert ring_bound(world, range(4)) == pytest.approx(9.0 / 100.0 * 4 / 6)
    assert ring(world, range(4)) == pytest.approx(ring_bound(world, range(4)))


def test_groups_are_one_group_where_links_are_equal() -> None:
    equal = given(*[100.0] * 4)
    assert groups(equal, range(4)) == pytest.approx(4 / 6)


def test_one_peer_needs_no_averaging() -> None:
    assert set(fixed_ways(given(100.0)).values()) == {math.inf}
