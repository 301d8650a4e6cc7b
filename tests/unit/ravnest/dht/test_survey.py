import pytest

from ravnest.dht.contacts import Contact, distance, key_id
from ravnest.dht.events import KeyFound
from ravnest.dht.node import Health
from ravnest.dht.survey import surveyed
from ravnest.simulator.hash_table import Drawn

HEALTH = Health(bytes(20), 0, {}, 0, 0, 0, 0, 0, requests_sent=200, requests_failed=10, round_trip_s=0.02, blocked=0)


def searched(nodes: int, searches: int = 40) -> dict[bytes, KeyFound]:
    draw = Drawn("survey")
    everyone = [Contact(draw.bytes(20), bytes([10, 0, 0, 1]), 1) for _ in range(nodes)]
    found = {}
    for number in range(searches):
        key = b"%d" % number
        nearest = sorted(everyone, key=lambda one: distance(one.id, key_id(key)))[:10]
        found[key] = KeyFound((), None, 12, number % 2 == 0, tuple(nearest))
    return found


@pytest.mark.parametrize("nodes", [100, 3000])
def test_the_size_of_a_table_is_estimated_by_how_near_its_nodes_are(nodes: int) -> None:
    seen = surveyed(searched(nodes), HEALTH)
    assert seen.nodes == pytest.approx(nodes, rel=0.25)
    assert seen.met <= nodes


def test_a_small_table_is_counted() -> None:
    seen = surveyed(searched(7), HEALTH)
    assert (seen.nodes, seen.met, seen.searches) == (7.0, 7, 40)
    assert (seen.complete, seen.requests_per_search, seen.unanswered) == (0.5, 12.0, 0.05)
    assert surveyed(searched(0), HEALTH).nodes == 0.0
