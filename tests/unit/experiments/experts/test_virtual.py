from experiments.experts.virtual import Homes, fill, measure
from ravnest.dht.contacts import distance
from ravnest.dht.node import HashTableNode
from ravnest.simulator.hash_table import ChecksumIdentity, Drawn


def test_delays_are_the_same_both_ways_and_grow_with_the_distance() -> None:
    homes = Homes(20, seed=1)
    delays = [homes.delay_s(one, other) for one in range(20) for other in range(20) if one != other]
    assert delays == [homes.delay_s(other, one) for one in range(20) for other in range(20) if one != other]
    assert 0.002 < min(delays) < max(delays) < 0.2


def test_a_filled_table_knows_the_nearest_and_some_of_all_others() -> None:
    nodes = [HashTableNode(ChecksumIdentity(str(number)), Drawn(str(number)).bytes) for number in range(120)]
    fill(nodes, seed=1)
    for node in nodes[:10]:
        known = {contact.id for contact in node.contacts()}
        others = sorted((one.id for one in nodes if one is not node), key=lambda one: distance(one, node.id))
        assert set(others[:10]) <= known
        assert 60 <= len(known) < 119


def test_all_that_was_stored_is_found_within_few_hops() -> None:
    measured = measure(60, joined=False, searches=10, seed=3)
    assert (measured.found, measured.asked) == (10, 10)
    assert max(measured.hops) <= 6
    assert all(0 <= one < 5 for one in measured.get_s)
