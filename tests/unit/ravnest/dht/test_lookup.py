from collections.abc import Mapping
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from ravnest.dht.contacts import Contact, distance
from ravnest.dht.lookup import MOST_CANDIDATES, MOST_REQUESTS, NETWORK_IN_LOOKUP, PARALLEL, Lookup

LOCAL = bytes([10, 0, 0, 1])
TARGET = bytes(20)
OWN = b"\xff" * 20


def contact(one: int, ip: bytes = LOCAL) -> Contact:
    return Contact(one.to_bytes(20, "big"), ip, 1000)


def run(lookup: Lookup, tells: Mapping[Contact, list[Contact]]) -> None:
    """Each node that is asked answers with what it tells; who is not in `tells` fails."""
    while not lookup.finished:
        asked = lookup.next()
        assert asked, "a lookup that is not finished asks somebody, or waits for somebody"
        for one in asked:
            if one in tells:
                lookup.answered(one, tells[one])
            else:
                lookup.failed(one)


def test_it_asks_few_at_a_time_and_another_when_one_is_late() -> None:
    lookup = Lookup(TARGET, map(contact, range(1, 9)), count=4, own_id=OWN)
    assert lookup.next() == [contact(one) for one in (1, 2, 3)]
    assert lookup.next() == []
    lookup.late(contact(1))
    assert lookup.next() == [contact(4)]
    assert PARALLEL == 3


def test_it_is_over_when_the_nearest_have_answered_and_counts_the_hops() -> None:
    lookup = Lookup(TARGET, [contact(64)], count=2, own_id=OWN)
    assert lookup.next() == [contact(64)]
    lookup.answered(contact(64), [contact(8), contact(9)])
    assert lookup.next() == [contact(8), contact(9)]
    lookup.answered(contact(8), [contact(1)])
    lookup.answered(contact(9), [])
    assert not lookup.finished
    assert lookup.next() == [contact(1)]
    lookup.answered(contact(1), [])
    assert lookup.finished
    assert lookup.nearest_answered(3) == [contact(1), contact(8), contact(9)]
    assert [lookup.hops(contact(one)) for one in (64, 8, 1)] == [1, 2, 3]


def test_an_answer_that_comes_late_counts_and_a_second_one_does_not() -> None:
    lookup = Lookup(TARGET, [contact(5)], count=2, own_id=OWN)
    lookup.next()
    lookup.failed(contact(5))
    assert lookup.finished
    lookup.answered(contact(5), [contact(1)])
    lookup.answered(contact(5), [contact(2)])
    assert lookup.next() == [contact(1)]


def test_what_a_node_names_is_doubted_once_those_whom_it_named_have_failed() -> None:
    """A liar names nodes that do not exist, all nearer than any real one."""
    real = [contact(1000 + one) for one in range(30)]
    tells = dict.fromkeys(real, real)
    tells[real[0]] = [contact(one) for one in range(1, 200)]
    lookup = Lookup(TARGET, real[:3], count=5, own_id=OWN)
    run(lookup, tells)
    assert set(real[:5]) <= set(lookup.nearest_answered(5))
    assert lookup.requests < 15


def test_an_honest_node_of_whose_neighbours_a_few_have_died_is_believed() -> None:
    known = [contact(one) for one in range(1, 21)]
    alive = [one for index, one in enumerate(known) if index % 5]
    lookup = Lookup(TARGET, [contact(500)], count=5, own_id=OWN)
    run(lookup, {contact(500): known, **dict.fromkeys(alive, known)})
    assert lookup.nearest_answered(5) == alive[:5]


def test_few_candidates_of_one_network_are_taken_and_never_oneself() -> None:
    crowd = [contact(one, bytes([8, 8, 8, one])) for one in range(1, 50)]
    lookup = Lookup(TARGET, [*crowd, Contact(OWN, LOCAL, 1)], count=20, own_id=OWN)
    run(lookup, {one: [] for one in crowd})
    assert lookup.requests == NETWORK_IN_LOOKUP


def test_requests_and_memory_have_an_end_whatever_is_answered() -> None:
    lookup, fresh = Lookup(TARGET, [contact(1 << 150)], count=20, own_id=OWN), 1 << 149
    while not lookup.finished:
        for one in lookup.next():
            fresh -= 30
            lookup.answered(one, [contact(fresh + number) for number in range(20)])
    assert lookup.requests == MOST_REQUESTS
    assert len(lookup.nearest_answered(10**6)) <= MOST_CANDIDATES


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 30), count=st.integers(30, 150), dead=st.floats(0, 0.3))
def test_it_finds_the_nearest_that_are_alive(seed: int, count: int, dead: float) -> None:
    """Each node knows its 20 nearest and 20 others."""
    draw = Random(seed)
    everyone = [Contact(draw.randbytes(20), LOCAL, 1000) for _ in range(count)]
    tells = {}
    for one in everyone:
        near = sorted(everyone, key=lambda other: distance(other.id, one.id))[1:21]
        tells[one] = sorted({*near, *draw.sample(everyone, 20)}, key=lambda other: distance(other.id, TARGET))[:20]
    alive = {one: told for one, told in tells.items() if draw.random() >= dead}
    lookup = Lookup(TARGET, list(alive)[:5], count=20, own_id=OWN)
    run(lookup, alive)
    nearest = sorted(alive, key=lambda one: distance(one.id, TARGET))
    assert lookup.nearest_answered(5) == nearest[:5]
