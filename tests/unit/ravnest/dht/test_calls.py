from ravnest.dht.calls import MOST_SEARCHES, GetCall, JoinCall, Searches, Spread, StoreCall
from ravnest.dht.contacts import Contact, distance, key_id
from ravnest.dht.events import AnswerGet, AnswerJoin, AnswerStore, Entry, EntryStored, GetAsked, JoinAsked, StoreAsked
from ravnest.dht.messages import Find, Store
from ravnest.dht.records import Record, signed_record
from ravnest.dht.search import REPLICAS
from ravnest.dht.store import Stored
from ravnest.simulator.hash_table import ChecksumIdentity
from tests.support.one_core import OneCore, contact

PEERS = [contact(1000 + number) for number in range(8)]
AUTHOR = ChecksumIdentity("author")


def signed(entry: Entry, now_s: float) -> Record:
    return signed_record(AUTHOR, entry.key, entry.subkey, entry.value, issued_s=now_s, lifetime_s=entry.lifetime_s)


def record(key: bytes = b"k") -> Record:
    return signed(Entry(key, b"", b"v", 600.0), 0.0)


def get(one: OneCore, *keys: bytes, thorough: bool = False) -> None:
    GetCall(one.core, Searches(one.core), GetAsked(1, keys, 9.0, thorough)).begin(0.0)


def answered_by_all(one: OneCore) -> list[tuple[Contact, Find | Store]]:
    """Everybody who is asked to find answers without a word. Returns the requests to store."""
    stores = []
    while sent := one.sent():
        for to, message in sent:
            if isinstance(message, Find):
                one.found((to, message))
            else:
                stores.append((to, message))
    return stores


def test_a_node_that_keeps_the_records_answers_by_itself_unless_all_are_to_be_asked() -> None:
    one = OneCore(PEERS)
    one.core.store.put(record(), PEERS[0].ip, 0.0, 1e9)
    get(one, b"k")
    assert one.sent() == []
    (answer,) = one.others
    assert isinstance(answer, AnswerGet)
    assert (answer.found[b"k"].records, answer.found[b"k"].hops) == ((record(),), 0)
    get(one, b"k", thorough=True)
    assert one.sent()


def test_the_nearest_who_had_nothing_gets_a_copy() -> None:
    near, far = sorted(PEERS[:2], key=lambda peer: distance(peer.id, key_id(b"k")))
    one = OneCore([far])
    get(one, b"k")
    ((_, find),) = one.sent()
    one.found((far, find), contacts=[near, PEERS[2]])
    asked = dict(one.sent())
    one.found((near, asked[near]))
    one.found((PEERS[2], asked[PEERS[2]]), records=[record()])
    ((to, store),) = one.sent()
    assert isinstance(store, Store)
    assert (to, store.as_copies, store.records) == (near, True, (record(),))


def test_a_get_answers_at_its_deadline_with_what_there_is() -> None:
    one = OneCore(PEERS)
    get(one, b"k", b"l")
    one.pass_all_time()
    one.sent()
    (answer,) = one.others
    assert isinstance(answer, AnswerGet)
    assert list(answer.found) == [b"k", b"l"]
    assert all(not found.records and found.hops is None for found in answer.found.values())


def test_a_store_counts_who_keeps_it_and_why_others_do_not() -> None:
    one = OneCore(PEERS)
    asked = StoreAsked(7, (Entry(b"k", b"", b"v", 60.0), Entry(b"k", b"2", b"w", 60.0)), 9.0)
    StoreCall(one.core, Searches(one.core), asked, signed).begin(0.0)
    stores = answered_by_all(one)
    assert len(stores) in {REPLICAS - 1, REPLICAS}
    own = REPLICAS - len(stores)
    results = [(Stored.KEPT, Stored.SAME), (Stored.FULL, Stored.KEPT)]
    for store, result in zip(stores[:2], results, strict=True):
        one.stored(store, *result)
    one.pass_all_time()
    one.sent()
    (answer,) = one.others
    assert isinstance(answer, AnswerStore)
    assert answer.call == 7
    assert [(stored.kept, stored.refused) for stored in answer.stored] == [(1 + own, {Stored.FULL: 1})] * 2


def test_a_node_alone_keeps_what_it_stores_itself() -> None:
    one, ends = OneCore([]), []

    def ended(stored: EntryStored, now_s: float) -> None:
        ends.append((stored.kept, now_s))

    Spread(one.core, Searches(one.core), [record()], ended).begin(0.0, 9.0)
    assert ends == [(1, 0.0)]
    assert one.core.store.find(key_id(b"k"), 0.0)[0] == [record()]


def test_nothing_to_do_is_answered_at_once() -> None:
    one = OneCore(PEERS)
    get(one)
    StoreCall(one.core, Searches(one.core), StoreAsked(2, (), 9.0), signed).begin(0.0)
    JoinCall(one.core, Searches(one.core), JoinAsked(3, (), 9.0)).begin(0.0)
    JoinCall(one.core, Searches(one.core), JoinAsked(None, (), 9.0)).begin(0.0)
    one.sent()
    assert one.others == [AnswerGet(1, {}), AnswerStore(2, ()), AnswerJoin(3, 0, len(PEERS))]


def test_a_join_that_nobody_answers_ends_and_says_so() -> None:
    one = OneCore([])
    JoinCall(one.core, Searches(one.core), JoinAsked(3, (PEERS[0].address, PEERS[1].address), 9.0)).begin(0.0)
    one.pass_all_time()
    one.sent()
    assert one.others == [AnswerJoin(3, 0, 0)]


def test_few_searches_go_on_at_a_time_and_the_others_have_their_turn() -> None:
    one, ends = OneCore(PEERS[:1]), []
    searches = Searches(one.core)
    for number in range(MOST_SEARCHES + 5):
        searches.begin(number.to_bytes(20, "big"), 0.0, 9.0, lambda search, _: ends.append(search.target))
    first = one.sent()
    assert len(first) == MOST_SEARCHES
    one.found(first[0])
    assert len(one.sent()) == 1
    one.pass_all_time()
    assert len(ends) == MOST_SEARCHES + 5
