from random import Random

from hypothesis import given
from hypothesis import strategies as st

from ravnest.dht.contacts import ID_BITS, Contact, distance, number
from ravnest.dht.routing import (
    BUCKET_CONTACTS,
    NETWORK_IN_BUCKET,
    NETWORK_IN_TABLE,
    QUESTIONABLE_S,
    REFRESH_S,
    SPARE_CONTACTS,
    RoutingTable,
)

OWN = bytes(20)
LOCAL = bytes([10, 0, 0, 1])


def contact(one: int, ip: bytes = LOCAL, port: int = 1000) -> Contact:
    return Contact(one.to_bytes(20, "big"), ip, port)


def far(index: int, ip: bytes = LOCAL) -> Contact:
    """One of the nodes of the last bucket."""
    return contact((1 << 159) + index, ip)


def filled(count: int) -> RoutingTable:
    table = RoutingTable(OWN)
    for index in range(count):
        assert table.add(far(index), 0.0) is None
    return table


def test_a_full_bucket_keeps_whom_it_knows_and_newcomers_wait() -> None:
    table = filled(BUCKET_CONTACTS + SPARE_CONTACTS)
    assert table.bucket_sizes() == {159: (BUCKET_CONTACTS, SPARE_CONTACTS)}
    assert not table.wants(far(99))
    assert {one.id for one in table.contacts()} == {far(index).id for index in range(BUCKET_CONTACTS)}


def test_the_spare_that_was_seen_last_takes_the_place_of_one_that_fails() -> None:
    table = filled(BUCKET_CONTACTS + 2)
    table.seen(far(BUCKET_CONTACTS), 1.0)
    table.failed(far(0))
    assert far(0) not in set(table.contacts())
    assert far(BUCKET_CONTACTS) in set(table.contacts())


def test_without_spares_one_failure_is_forgiven_and_moves_to_the_end_of_answers() -> None:
    table = filled(3)
    table.failed(far(0))
    assert table.closest(far(0).id, 3) == [far(1), far(2), far(0)]
    table.seen(far(0), 1.0)
    assert table.closest(far(0).id, 3)[0] == far(0)
    table.failed(far(0))
    table.failed(far(0))
    assert len(table) == 2


def test_who_has_been_silent_for_long_is_named_when_a_newcomer_wants_its_place() -> None:
    table = filled(BUCKET_CONTACTS)
    table.seen(far(0), QUESTIONABLE_S)
    assert table.add(far(50), QUESTIONABLE_S + 1) == far(1)
    assert table.add(far(51), QUESTIONABLE_S) is None


def test_a_known_node_changes_its_address_only_when_the_old_one_has_failed() -> None:
    table, moved = filled(1), far(0, bytes([10, 0, 0, 2]))
    table.add(moved, 0.0)
    assert list(table.contacts()) == [far(0)]
    table.failed(far(0))
    table.add(moved, 1.0)
    assert list(table.contacts()) == [moved]


def test_one_network_gets_few_places_and_gets_them_back() -> None:
    table = RoutingTable(OWN)
    for index in range(40):
        table.add(contact((1 << (100 + index // 4)) + index, bytes([8, 8, 8, index])), 0.0)
    assert len(table) == NETWORK_IN_TABLE
    assert max(contacts for contacts, _ in table.bucket_sizes().values()) == NETWORK_IN_BUCKET
    for one in list(table.contacts()):
        table.remove(one)
    assert table.wants(far(0, bytes([8, 8, 8, 8])))


def test_who_lies_goes_and_oneself_is_never_a_contact() -> None:
    table = filled(2)
    table.remove(far(0))
    assert list(table.contacts()) == [far(1)]
    assert not table.wants(contact(0))


def test_buckets_without_lookups_are_stale_and_an_id_in_their_range_is_made() -> None:
    table = filled(1)
    table.add(contact(1 << 80), 0.0)
    table.looked_up(far(3).id, 5.0)
    assert table.stale_buckets(REFRESH_S) == [80]
    assert table.nearest_bucket() == 80
    assert RoutingTable(OWN).nearest_bucket() == ID_BITS
    for index in (0, 80, 159):
        assert number(table.id_in(index, b"\xff" * 20)).bit_length() - 1 == index


@given(seed=st.integers(0, 1 << 30), count=st.integers(0, 60), wanted=st.integers(1, 25))
def test_the_closest_are_those_that_sorting_all_would_give(seed: int, count: int, wanted: int) -> None:
    draw = Random(seed)
    table = RoutingTable(draw.randbytes(20))
    for _ in range(count):
        near = number(draw.randbytes(20)) >> draw.randrange(ID_BITS)
        table.add(contact(near), 0.0)
    target = draw.randbytes(20)
    everyone = sorted(table.contacts(), key=lambda one: distance(one.id, target))
    assert table.closest(target, wanted) == everyone[:wanted]
