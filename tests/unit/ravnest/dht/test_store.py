from hypothesis import given, settings
from hypothesis import strategies as st

from ravnest.dht.contacts import distance, key_id
from ravnest.dht.records import Record
from ravnest.dht.store import COPY_S, RecordStore, Stored, StoreLimits

LOCAL, PUBLIC = bytes([10, 0, 0, 1]), bytes([8, 8, 8, 8])
NEVER_S = 1e9
OWN = bytes(20)


def record(
    key: bytes = b"k", author: int = 0, *, subkey: bytes = b"", value: bytes = b"v", issued_s: float = 0.0
) -> Record:
    return Record(key, subkey, value, author.to_bytes(32, "big"), issued_s, 1000.0, bytes(64))


def put(store: RecordStore, one: Record, now_s: float = 0.0, *, ip: bytes = LOCAL, as_copy: bool = False) -> Stored:
    return store.put(one, ip, now_s, NEVER_S, as_copy=as_copy)


def test_each_author_has_sub_keys_of_its_own_and_the_newest_of_each_counts() -> None:
    store = RecordStore(OWN)
    assert put(store, record(author=1)) is Stored.KEPT
    assert put(store, record(author=2)) is Stored.KEPT
    assert put(store, record(author=2, subkey=b"b")) is Stored.KEPT
    assert put(store, record(author=1, value=b"new", issued_s=2.0)) is Stored.KEPT
    assert put(store, record(author=1, value=b"old", issued_s=1.0)) is Stored.OLDER
    assert put(store, record(author=1, value=b"new", issued_s=2.0)) is Stored.SAME
    found, has_copies = store.find(key_id(b"k"), 0.0)
    assert ([one.value for one in found], has_copies) == ([b"new", b"v", b"v"], False)
    assert (len(store), store.keys()) == (3, 1)


def test_what_has_expired_is_not_found_and_then_forgotten() -> None:
    store = RecordStore(OWN)
    put(store, record())
    assert store.find(key_id(b"k"), 1000.0) == ([], False)
    store.expire(1000.0)
    assert (len(store), store.bytes, store.keys()) == (0, 0, 0)


def test_a_copy_ends_soon_is_not_fresh_and_becomes_a_replica_when_it_is_stored() -> None:
    store, place = RecordStore(OWN), key_id(b"k")
    put(store, record(), as_copy=True)
    assert store.find(place, 0.0) == ([record()], True)
    assert store.find(place, 0.0, fresh=True) == ([], False)
    assert store.find(place, COPY_S) == ([], False)
    assert not list(store.replicas())
    put(store, record())
    assert store.find(place, COPY_S, fresh=True) == ([record()], False)
    assert put(store, record(value=b"new", issued_s=1.0), as_copy=True) is Stored.KEPT
    assert [held.record.value for held in store.replicas()] == [b"new"]


def test_when_there_is_no_room_copies_go_first_and_then_the_key_that_is_farthest() -> None:
    size = record(b"00").size()
    keys = sorted((b"%02d" % number for number in range(8)), key=lambda key: distance(key_id(key), OWN))
    store = RecordStore(OWN, StoreLimits(most_bytes=4 * size))
    put(store, record(keys[0]), as_copy=True)
    for key in keys[2:6]:
        assert put(store, record(key)) is Stored.KEPT
    assert store.find(key_id(keys[0]), 0.0) == ([], False)
    assert put(store, record(keys[7])) is Stored.FULL
    assert put(store, record(keys[1])) is Stored.KEPT
    assert store.find(key_id(keys[5]), 0.0) == ([], False)
    assert put(store, record(keys[0]), as_copy=True) is Stored.FULL


def test_one_network_fills_only_its_part_and_leaves_room_to_others() -> None:
    size = record(b"000").size()
    store = RecordStore(OWN, StoreLimits(most_bytes=80 * size))
    kept = [put(store, record(b"%03d" % number), ip=PUBLIC) for number in range(50)]
    assert kept.count(Stored.KEPT) == 10
    assert put(store, record(b"999"), ip=bytes([9, 9, 9, 9])) is Stored.KEPT
    assert put(store, record(b"998"), ip=LOCAL) is Stored.KEPT


def test_one_network_fills_only_its_part_of_one_key() -> None:
    store = RecordStore(OWN, StoreLimits(key_records=800))
    kept = [put(store, record(author=number), ip=PUBLIC) for number in range(200)]
    assert kept.count(Stored.KEPT) == 100
    assert put(store, record(author=999), ip=bytes([9, 9, 9, 9])) is Stored.KEPT


def test_a_key_has_only_so_many_records_and_those_may_still_be_renewed() -> None:
    store = RecordStore(OWN, StoreLimits(key_records=3))
    assert [put(store, record(author=number)) for number in range(4)] == [Stored.KEPT] * 3 + [Stored.FULL]
    assert put(store, record(author=0, issued_s=1.0)) is Stored.KEPT


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 5),
            st.integers(0, 9),
            st.integers(0, 600),
            st.integers(0, 3),
            st.integers(1, 200),
            st.booleans(),
        ),
        max_size=150,
    )
)
def test_no_flood_takes_more_than_the_limits_and_the_count_is_right(
    flood: list[tuple[int, int, int, int, int, bool]],
) -> None:
    limits = StoreLimits(most_bytes=12_000, key_records=6)
    store, now_s = RecordStore(OWN, limits), 0.0
    for step, (key, author, length, host, lasts_s, as_copy) in enumerate(flood):
        now_s += 7.0
        one = Record(b"%d" % key, b"", bytes(length), author.to_bytes(32, "big"), step, now_s + lasts_s, bytes(64))
        ip = LOCAL if host == 0 else bytes([8, 8, host, 8])
        store.put(one, ip, now_s, NEVER_S, as_copy=as_copy)
        assert store.bytes <= limits.most_bytes
    store.expire(now_s)
    found = [one for key in range(6) for one in store.find(key_id(b"%d" % key), now_s)[0]]
    assert (len(store), store.bytes) == (len(found), sum(one.size() for one in found))
