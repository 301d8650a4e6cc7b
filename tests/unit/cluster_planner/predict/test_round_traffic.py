import numpy as np
import pytest

from cluster_planner.predict.round_traffic import MOST_LOOKED_AT, held_rings_s
from cluster_planner.rings import Exchange


def ring_of(members: list[int], hop_s: list[float], nodes: int, *, way_s: float = 0.1) -> Exchange:
    """A ring of these nodes, in passing order, whose hops take so long."""
    senders, taken_s = np.array(members), np.array(hop_s)
    pairs = senders * nodes + np.roll(senders, -1)
    return Exchange(pairs, taken_s, taken_s, 0 * taken_s, "a", max(hop_s), 0.0, way_s)


def test_a_hop_that_was_held_up_leaves_what_later_ones_could_not_send_before() -> None:
    """Of four members each hop sends six pieces, and the one d after that which was held up has sent d of them."""
    ring = ring_of([3, 0, 2, 1], [1.0, 1.0, 12.0, 1.0], 5)
    out_s, into_s = held_rings_s([ring], 5)
    assert out_s == pytest.approx([12 * 5 / 6, 12 * 3 / 6, 12, 12 * 4 / 6, 0])
    assert into_s == pytest.approx([12 * 4 / 6, 12, 12 * 5 / 6, 12 * 3 / 6, 0]), "the hop into node 1 is that out of 2"


def test_the_slowest_ring_of_a_node_counts() -> None:
    rings = [ring_of([0, 1, 2], [4.0, 4.0, 4.0], 3), ring_of([2, 1], [9.0, 2.0], 3)]
    assert held_rings_s(rings, 3)[0].tolist() == [4.0, 4.5, 9.0]


def test_in_a_direct_exchange_nobody_waits_for_another() -> None:
    assert not held_rings_s([ring_of([0, 1, 2], [4.0, 4.0, 4.0], 3, way_s=0.0)], 3)[0].any()


def test_of_a_large_ring_all_that_is_slow_is_still_to_come() -> None:
    count = MOST_LOOKED_AT + 1
    out_s, _ = held_rings_s([ring_of(list(range(count)), [5.0] + [1.0] * (count - 1), count)], count)
    assert out_s.tolist() == [5.0] * count
