from ravnest.dht.answering import REPUBLISH_S, TOKEN_S, Answers, Tokens, republish_after
from ravnest.dht.contacts import Address, Contact, key_id, node_id
from ravnest.dht.messages import Find, Ping, Store, pong_part
from ravnest.dht.records import Record, Rule, Rules, signed_record
from ravnest.dht.routing import RoutingTable
from ravnest.dht.store import RecordStore, Stored, StoreLimits
from ravnest.simulator.hash_table import ChecksumIdentity, Drawn

ME, OTHER = ChecksumIdentity("me"), ChecksumIdentity("other")
HERE, THERE = Address(bytes([10, 0, 0, 1]), 1), Address(bytes([10, 0, 0, 2]), 1)
HEAD = {"nonce": bytes(8), "sender": bytes(20), "listens": True}


def record(value: bytes = b"v", key: bytes = b"k", author: ChecksumIdentity = OTHER) -> Record:
    return signed_record(author, key, b"", value, issued_s=0.0, lifetime_s=600.0)


def answers(rules: Rules | None = None, limits: StoreLimits | None = None) -> tuple[Answers, RoutingTable]:
    own_id = node_id(ME.public_key)
    table = RoutingTable(own_id)
    return Answers(ME, table, RecordStore(own_id, limits), rules or Rules(), Drawn("0").bytes), table


def test_a_pong_proves_the_id_to_who_asked() -> None:
    mine, _ = answers()
    pong = mine.to_ping(Ping(nonce=b"12345678", sender=b"\x07" * 20, listens=True))
    assert node_id(pong.public_key) == pong.sender
    assert OTHER.verify(pong.public_key, pong_part(b"12345678", pong.sender, b"\x07" * 20), pong.signature)
    assert not OTHER.verify(pong.public_key, pong_part(b"12345678", pong.sender, b"\x08" * 20), pong.signature)


def test_records_are_kept_for_who_shows_the_token_of_its_own_address() -> None:
    mine, _ = answers()
    token = mine.to_find(Find(**HEAD, target=key_id(b"k")), THERE, 0.0).token
    store = Store(**HEAD, token=token, records=(record(),))
    assert mine.to_store(store, HERE, 0.0).results == (Stored.NO_TOKEN,)
    assert mine.to_find(Find(**HEAD, target=key_id(b"k")), HERE, 0.0).records == ()
    assert mine.to_store(store, THERE, 0.0).results == (Stored.KEPT,)
    found = mine.to_find(Find(**HEAD, target=key_id(b"k")), HERE, 0.0)
    assert (found.records, found.total, found.copies) == ((record(),), 1, False)
    assert mine.refused == 1


def test_each_record_is_judged_by_itself_and_by_the_rules() -> None:
    rules = Rules({b"mine/": Rule(authors=frozenset({ME.public_key}))})
    mine, _ = answers(rules, StoreLimits(key_records=1))
    token = mine.to_find(Find(**HEAD, target=bytes(20)), THERE, 0.0).token
    forged = Record(b"k", b"", b"w", OTHER.public_key, 0.0, 600.0, bytes(64))
    records = (record(), forged, record(key=b"mine/x"), record(author=ME), record())
    asked = Store(**HEAD, token=token, records=records)
    expected = (Stored.KEPT, Stored.INVALID, Stored.INVALID, Stored.FULL, Stored.SAME)
    assert mine.to_store(asked, THERE, 0.0).results == expected


def test_an_answer_names_the_nearest_without_who_asks_and_pages_have_records_only() -> None:
    mine, table = answers()
    everyone = [Contact(number.to_bytes(20, "big"), HERE.ip, number) for number in range(1, 10)]
    for contact in everyone:
        table.add(contact, 0.0)
    token = mine.to_find(Find(**HEAD, target=bytes(20)), THERE, 0.0).token
    records = tuple(record(author=ChecksumIdentity(str(number)), value=bytes(400)) for number in range(3))
    mine.to_store(Store(**HEAD, token=token, records=records), THERE, 0.0)
    asked = Find(nonce=bytes(8), sender=everyone[0].id, listens=True, target=key_id(b"k"))
    first = mine.to_find(asked, THERE, 0.0)
    assert (first.total, len(first.records)) == (3, 1)
    assert set(first.contacts) <= set(everyone[1:])
    assert len(first.contacts) == 8
    rest = mine.to_find(Find(**HEAD, target=key_id(b"k"), skip=1), THERE, 0.0)
    assert rest.contacts == ()
    assert {*first.records, *rest.records} == set(records)
    unwanted = mine.to_find(Find(**HEAD, target=key_id(b"k"), records=False), THERE, 0.0)
    assert (unwanted.records, len(unwanted.contacts)) == ((), 9)


def test_a_token_counts_for_some_minutes_and_not_for_long() -> None:
    tokens = Tokens(Drawn("0").bytes)
    token = tokens.of(THERE, 0.0)
    assert tokens.is_valid(token, THERE, TOKEN_S - 1)
    assert tokens.is_valid(token, THERE, 2 * TOKEN_S - 1)
    assert not tokens.is_valid(token, THERE, 3 * TOKEN_S)
    idle = Tokens(Drawn("1").bytes)
    token = idle.of(THERE, 0.0)
    assert not idle.is_valid(token, THERE, 50 * TOKEN_S)


def test_holders_pass_on_at_different_times() -> None:
    times = {republish_after(Drawn(str(seed)).bytes) for seed in range(20)}
    assert len(times) == 20
    assert all(REPUBLISH_S <= one <= 1.5 * REPUBLISH_S for one in times)
