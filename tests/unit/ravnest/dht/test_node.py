"""Whole tables under the virtual clock: what is stored is found, whatever is lost, dies, lies or floods."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ravnest.dht.answering import REPUBLISH_S
from ravnest.dht.contacts import Address, Contact, key_id
from ravnest.dht.events import AnswerStore, Event, Instruction, MessageArrived, Send, StoreAsked, TimePassed
from ravnest.dht.messages import Find, Found, Ping, Request, Store, StoreAnswer
from ravnest.dht.node import MAINTENANCE_S, REJOIN_S, HashTableNode
from ravnest.dht.records import Record, signed_record
from ravnest.dht.search import REPLICAS
from ravnest.dht.store import Stored, StoreLimits
from ravnest.simulator.hash_table import ChecksumIdentity, Drawn
from tests.support.hash_table import Town, entry, over_the_wire, virtual_node


class Liar:
    """Proves an id of its own and then tells only lies: nodes that do not exist near each target, and records that
    nobody has signed. It says that it keeps what it throws away."""

    def __init__(self, name: str) -> None:
        self._honest = virtual_node(name)
        self._draw = Drawn(f"lies of {name}")

    @property
    def wakes_s(self) -> float | None:
        return self._honest.wakes_s

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        match event:
            case MessageArrived(sender, Find() as asked):
                head = {"nonce": asked.nonce, "sender": self._honest.id}
                near = [asked.target[:18] + self._draw.bytes(2) for _ in range(16)]
                named = [Contact(one, bytes([10]) + self._draw.bytes(3), 7) for one in near]
                forged = Record(b"0", b"", b"lie", bytes(32), now_s, now_s + 60, bytes(64))
                is_asked = asked.records and asked.target == key_id(b"0")
                records = (forged,) if is_asked else ()
                return [
                    Send(
                        sender,
                        Found(**head, token=bytes(8), total=1, copies=False, records=records, contacts=tuple(named)),
                    )
                ]
            case MessageArrived(sender, Store() as asked):
                results = (Stored.KEPT,) * len(asked.records)
                return [Send(sender, StoreAnswer(nonce=asked.nonce, sender=self._honest.id, results=results))]
        return self._honest.handle(event, now_s)


def test_what_one_stores_all_find_and_every_message_passes_the_wire() -> None:
    town = Town(24, on_message=over_the_wire)
    assert all(node.health(0.0).contacts >= 15 for node in town.nodes)
    (stored, other) = town.store(5, entry(b"k", b"one"), entry(b"k", b"two", b"second"))
    assert stored.kept == other.kept == REPLICAS
    for number in range(24):
        assert sorted(town.values(number, b"k")) == [b"one", b"two"]
    assert town.get(9, b"nothing")[0].records == ()
    assert town.get(9) == []


def test_authors_share_a_key_and_the_newest_of_each_counts_until_it_is_withdrawn_or_expires() -> None:
    town = Town(12)
    town.store(1, entry(b"k", b"old"), entry(b"short", lifetime_s=50.0))
    town.store(2, entry(b"k", b"other"))
    town.store(1, entry(b"k", b"new"))
    assert sorted(town.values(7, b"k", thorough=True)) == [b"new", b"other"]
    town.store(1, entry(b"k", b""))
    assert town.values(7, b"k", thorough=True) == [b"other"]
    assert town.values(7, b"short") == [b"v"]
    town.table.run_until(town.table.now_s + 50)
    assert town.values(7, b"short") == []


def test_many_records_of_one_key_are_all_read() -> None:
    town = Town(10)
    for number in range(4):
        town.store(number, *(entry(b"grid", bytes(100), subkey=b"%d" % one) for one in range(15)))
    for thorough in (False, True):
        (found,) = town.get(8, b"grid", thorough=thorough)
        assert len({record.slot for record in found.records}) == 60
        assert found.complete


def test_a_renewed_entry_lives_on_until_its_author_ends() -> None:
    town = Town(8)
    town.store(1, entry(b"k", renewed=True, lifetime_s=90.0))
    town.table.run_until(town.table.now_s + 1000)
    assert town.values(5, b"k") == [b"v"]
    assert town.nodes[1].health(0.0).renewed_entries == 1
    town.table.kill(1)
    town.table.run_until(town.table.now_s + 100)
    assert town.values(5, b"k") == []


@pytest.mark.parametrize("outage_s", [30.0, 200.0])
def test_who_was_cut_off_is_heard_again_soon_however_much_it_had_asked(outage_s: float) -> None:
    cut_off: set[tuple[Address, bytes]] = set()

    def on_message(sent: Send) -> Send | None:
        return None if any(sent.address == at or sent.message.sender == own for at, own in cut_off) else sent

    town = Town(6, on_message=on_message)
    town.store(1, *(entry(b"%d" % number, renewed=True, lifetime_s=15.0) for number in range(30)))
    assert town.values(5, b"7") == [b"v"]
    cut_off.add((town.table.address(1), town.nodes[1].id))
    town.table.run_until(town.table.now_s + outage_s)
    assert town.nodes[1].health(town.table.now_s).contacts == 0
    town.store(4, entry(b"meanwhile"))
    cut_off.clear()
    town.table.run_until(town.table.now_s + 2 * REJOIN_S)
    assert town.nodes[1].health(town.table.now_s).contacts == 5
    assert town.values(1, b"meanwhile") == [b"v"]
    town.table.run_until(town.table.now_s + 10.0)
    assert [town.values(5, b"%d" % number) for number in range(30)] == [[b"v"]] * 30


def test_hundreds_of_searches_that_wait_all_end_when_nobody_is_left_to_ask() -> None:
    lost = False
    town = Town(3, on_message=lambda sent: None if lost else sent)
    lost = True
    found = town.get(1, *(b"%d" % number for number in range(400)))
    assert [one.records for one in found] == [()] * 400


def test_entries_of_one_key_are_renewed_by_one_search_and_those_that_end_no_longer() -> None:
    searched: list[float] = []

    def on_message(sent: Send) -> Send:
        if isinstance(sent.message, Find) and sent.message.target == key_id(b"k"):
            searched.append(town.table.now_s)
        return sent

    town = Town(8, on_message=on_message)
    for number in range(50):  # one after another, as a host claims experts
        town.store(1, entry(b"k", subkey=b"%d" % number, renewed=True, lifetime_s=90.0))
        town.table.run_until(town.table.now_s + 0.05)
    town.table.run_until(town.table.now_s + 20)
    searched.clear()
    town.table.run_until(town.table.now_s + 60)  # two renewals of each
    assert 0 < len(searched) <= 4 * 7  # of 100 without their being together; each search asks 7 others at most
    town.store(1, *(entry(b"k", b"", subkey=b"%d" % number) for number in range(49)))
    assert town.nodes[1].health(0.0).renewed_entries == 1
    town.table.run_until(town.table.now_s + 200)
    assert [one.subkey for one in town.get(5, b"k")[0].records] == [b"49"]
    town.store(1, entry(b"k", b"", subkey=b"49"))
    assert town.nodes[1].health(0.0).renewed_entries == 0


def test_records_are_passed_on_to_those_who_come_later() -> None:
    """All who kept it at first may die, one half after the other."""
    town = Town(10)
    town.store(0, entry(b"k", lifetime_s=50_000.0))
    for _ in range(10):
        town.settle()
    town.table.run_until(town.table.now_s + 2 * REPUBLISH_S)
    for number in range(10):
        town.table.kill(number)
    for number in range(10, 20):
        assert town.values(number, b"k") == [b"v"]


def test_a_node_that_only_opens_connections_outwards_stores_and_reads_and_is_nobodys_contact() -> None:
    town = Town(10)
    outwards = town.settle(listens=False)
    assert town.store(outwards, entry(b"k"))[0].kept == REPLICAS
    assert town.values(3, b"k") == [b"v"]
    assert town.values(outwards, b"k") == [b"v"]
    everybodys = {contact.id for node in town.nodes for contact in node.contacts()}
    assert town.nodes[outwards].id not in everybodys
    assert town.nodes[outwards].health(0.0).records == 0


def test_any_living_peer_lets_a_node_in_and_the_table_outlives_the_peers() -> None:
    town = Town(8)
    town.store(5, entry(b"k"))
    town.table.kill(0)
    late = town.settle(peers=[town.table.address(0), town.table.address(1)])
    assert len(town.nodes[late].contacts()) >= 6
    town.table.kill(1)
    assert town.values(late, b"k") == [b"v"]
    alone = town.settle(peers=[town.table.address(0)])
    assert town.nodes[alone].contacts() == []
    assert town.get(alone, b"k")[0].records == ()


def test_a_node_that_has_lost_everybody_comes_back_by_itself() -> None:
    cut = [False]

    def message(sent: Send) -> Send | None:
        return None if cut[0] else sent

    lonely = Town(6, on_message=message)
    cut[0] = True
    for key in (b"a", b"b", b"c", b"d"):
        lonely.get(3, key)
    assert lonely.nodes[3].contacts() == []
    cut[0] = False
    lonely.table.run_until(lonely.table.now_s + 10 * MAINTENANCE_S)
    assert len(lonely.nodes[3].contacts()) == 5


def test_a_node_whose_datagrams_were_all_lost_for_a_second_is_answered_all_the_same() -> None:
    cut = [False]

    def message(sent: Send) -> Send | None:
        return None if cut[0] else sent

    town = Town(6, on_message=message)
    cut[0] = True
    call = town.table.ask(3, lambda call: StoreAsked(call, (entry(b"k"),), 30.0))
    town.table.run_until(town.table.now_s + 1.0)
    cut[0] = False
    answer = town.table.answer(call, 31.0)
    assert isinstance(answer, AnswerStore)
    assert answer.stored[0].kept == REPLICAS
    assert town.values(5, b"k") == [b"v"]


@settings(max_examples=6, deadline=None)
@example(seed=384, loss=0.05, dead=0, liars=0)  # both datagrams by which one greets the first are lost
@example(seed=83, loss=0.15, dead=0, liars=2)  # the second knows only the first, whose answers are lost
@given(
    seed=st.integers(0, 1000), loss=st.sampled_from([0.0, 0.05, 0.15]), dead=st.integers(0, 4), liars=st.integers(0, 4)
)
def test_what_was_stored_is_found_under_loss_churn_and_liars(seed: int, loss: float, dead: int, liars: int) -> None:
    town = Town(20, seed=str(seed), loss=loss)
    for number in range(liars):
        liar = Liar(f"{seed}/liar {number}")
        call = town.table.add(liar)
        town.nodes.append(virtual_node(f"unused {number}"))
        town.join(call, [town.table.address(0)])
    keys = [b"%d" % number for number in range(6)]
    for number, key in enumerate(keys):
        assert town.store(number, entry(key))[0].kept >= 1
    for number in range(dead):
        town.table.kill(19 - number)
    for reader in (0, 9, 15):
        found = town.get(reader, *keys, thorough=True)
        assert [[record.value for record in one.records] for one in found] == [[b"v"]] * len(keys)


def test_a_flood_of_strangers_leaves_a_node_within_its_bounds_and_at_work() -> None:
    """Hundreds of ids at as many addresses ping, ask, and store what the limits do not allow."""
    draw = Drawn("flood")
    node = HashTableNode(ChecksumIdentity("victim"), Drawn("victim").bytes, limits=StoreLimits(most_bytes=50_000))
    author, sent = ChecksumIdentity("flooder"), 0
    for number in range(400):
        sender = Address(bytes([60, number // 250, number % 250, 7]), 2000)
        head = {"nonce": draw.bytes(8), "sender": draw.bytes(20), "listens": True}
        answers = node.handle(MessageArrived(sender, Find(**head, target=draw.bytes(20))), number * 0.01)
        token = next(one.message.token for one in answers if isinstance(one, Send) and isinstance(one.message, Found))
        key = b"%d" % (number % 50)
        record = signed_record(author, key, b"%d" % number, bytes(500), issued_s=0.0, lifetime_s=600.0)
        stored = node.handle(MessageArrived(sender, Store(**head, token=token, records=(record,))), number * 0.01)
        sent += sum(isinstance(one, Send) and isinstance(one.message, Request) for one in (*answers, *stored))
    health = node.health(4.0)
    assert health.record_bytes <= 50_000
    assert health.contacts == 0, "nobody has proven an id"
    assert sent <= 64, "a node asks few at a time for proofs"
    while (wakes_s := node.wakes_s) is not None and wakes_s < 50.0:
        node.handle(TimePassed(), wakes_s)
    assert node.health(50.0).contacts == 0


def test_an_answer_in_the_name_of_another_and_a_forged_proof_make_no_contact() -> None:
    node, sender = virtual_node("me"), Address(bytes([10, 0, 0, 9]), 5)
    asked = node.handle(MessageArrived(sender, Ping(nonce=bytes(8), sender=bytes(20), listens=True)), 0.0)
    (ping,) = [one.message for one in asked if isinstance(one, Send) and isinstance(one.message, Ping)]
    other = virtual_node("other")
    (pong,) = [
        one.message
        for one in other.handle(MessageArrived(sender, ping), 0.0)
        if isinstance(one, Send) and not isinstance(one.message, Request)
    ]
    node.handle(MessageArrived(sender, pong), 0.1)
    assert node.contacts() == [], "it proves the id of the other, not the one that was claimed"
