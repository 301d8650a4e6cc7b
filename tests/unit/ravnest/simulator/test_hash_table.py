import pytest

from ravnest.dht.contacts import Address
from ravnest.dht.events import AnswerJoin, Event, Instruction, JoinAsked, MessageArrived, Send, TimePassed
from ravnest.dht.messages import Ping
from ravnest.simulator.hash_table import ChecksumIdentity, Drawn, VirtualTable, address_of


class Echo:
    """Sends a ping to its peer when it is asked to join, answers each ping that comes, and wakes once."""

    def __init__(self, peer: Address | None = None, wakes_s: float | None = None) -> None:
        self.peer = peer
        self.wakes_s = wakes_s
        self.seen: list[tuple[str, float]] = []

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        self.seen.append((type(event).__name__, round(now_s, 6)))
        match event:
            case JoinAsked(call) if self.peer is not None:
                ping = Ping(nonce=bytes(8), sender=bytes(20), listens=True)
                return [Send(self.peer, ping), AnswerJoin(call, 0, 0)]
            case MessageArrived(sender, message) if self.peer is None:
                return [Send(sender, message)]
            case TimePassed():
                self.wakes_s = None
        return []


def joined(call: int) -> JoinAsked:
    return JoinAsked(call, (), 1.0)


def test_messages_take_their_time_and_machines_wake_when_they_want_to() -> None:
    table = VirtualTable(lambda one, other: 0.5 if one < other else 0.25)
    asker, answerer = Echo(address_of(1)), Echo(wakes_s=2.0)
    assert (table.add(asker), table.add(answerer)) == (0, 1)
    call = table.ask(0, joined)
    table.run_until(0.6)
    assert answerer.seen == [("MessageArrived", 0.5)]
    table.run_until(3.0)
    assert asker.seen == [("JoinAsked", 0.0), ("MessageArrived", 0.75)]
    assert answerer.seen[-1] == ("TimePassed", 2.0)
    assert table.answer(call, 1.0) == AnswerJoin(call, 0, 0)
    assert table.messages == 2


def test_nobody_reaches_who_only_opens_connections_outwards_uninvited() -> None:
    table = VirtualTable(lambda _, __: 0.1)
    hidden, open_one, stranger = Echo(address_of(1)), Echo(), Echo(address_of(0))
    table.add(hidden, outwards_only=True)
    table.add(open_one)
    table.add(stranger)
    table.ask(2, joined)
    table.ask(0, joined)
    table.run_until(1.0)
    assert [name for name, _ in hidden.seen] == ["JoinAsked", "MessageArrived"]
    assert len(stranger.seen) == 1


def test_what_is_lost_or_sent_to_the_dead_does_not_arrive() -> None:
    for loss, dead in ((1.0, False), (0.0, True)):
        table, answerer = VirtualTable(lambda _, __: 0.1, loss=loss), Echo()
        table.add(Echo(address_of(1)))
        table.add(answerer)
        table.ask(0, joined)
        if dead:
            table.kill(1)
        table.run_until(1.0)
        assert answerer.seen == []
        assert table.alive() == ([0] if dead else [0, 1])


def test_a_call_without_an_answer_says_so() -> None:
    table = VirtualTable(lambda _, __: 0.1)
    table.add(Echo())
    with pytest.raises(LookupError, match="call 1"):
        table.answer(table.ask(0, joined), 0.2)


def test_drawn_numbers_repeat_and_checksums_notice_a_change() -> None:
    one, same, other = Drawn("a"), Drawn("a"), Drawn("b")
    assert [one.unit(), one.bytes(4)] == [same.unit(), same.bytes(4)]
    assert one.bytes(8) != other.bytes(8)
    assert 0 <= other.unit() < 1
    identity = ChecksumIdentity("a")
    assert identity.verify(identity.public_key, b"x", identity.sign(b"x"))
    assert not identity.verify(identity.public_key, b"y", identity.sign(b"x"))
