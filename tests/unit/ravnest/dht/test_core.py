from ravnest.dht.contacts import Address, Contact, node_id
from ravnest.dht.core import MOST_PROVING, REMEMBERED, Core
from ravnest.dht.events import Send
from ravnest.dht.messages import Ping, Pong, pong_part
from ravnest.dht.records import Rules
from ravnest.simulator.hash_table import ChecksumIdentity, Drawn


def core() -> Core:
    return Core(ChecksumIdentity("me"), Drawn("me").bytes, listens=True, rules=Rules(), limits=None)


def other(number: int) -> tuple[ChecksumIdentity, Contact]:
    identity = ChecksumIdentity(str(number))
    return identity, Contact(node_id(identity.public_key), bytes([10, 0]) + number.to_bytes(2, "big"), 1000)


def pings(of: Core) -> list[tuple[Address, Ping]]:
    sent = [(one.address, one.message) for one in of.out if isinstance(one, Send)]
    of.out.clear()
    return [(address, message) for address, message in sent if isinstance(message, Ping)]


def proof(of: Core, identity: ChecksumIdentity, ping: Ping) -> Pong:
    own_id = node_id(identity.public_key)
    signature = identity.sign(pong_part(ping.nonce, own_id, of.own_id))
    return Pong(nonce=ping.nonce, sender=own_id, public_key=identity.public_key, signature=signature)


def test_who_speaks_is_asked_once_for_a_proof_and_then_is_a_contact() -> None:
    mine, (identity, contact) = core(), other(1)
    mine.met(contact, 0.0)
    mine.met(contact, 0.0)
    ((address, ping),) = pings(mine)
    assert address == contact.address
    assert not mine.table.holds(contact)
    mine.requests.arrived(address, proof(mine, identity, ping), 0.1)
    assert mine.table.holds(contact)
    mine.met(contact, 0.2)
    assert pings(mine) == []
    assert list(mine.remembered) == [address]


def test_a_proof_of_another_id_or_a_wrong_signature_makes_no_contact() -> None:
    mine, (identity, contact) = core(), other(1)
    (stranger, _) = other(2)
    mine.met(contact, 0.0)
    ((address, ping),) = pings(mine)
    mine.requests.arrived(address, proof(mine, stranger, ping), 0.1)
    assert len(mine.table) == 0
    mine.met(contact, 1.0)
    ((_, ping),) = pings(mine)
    good = proof(mine, identity, ping)
    forged = Pong(nonce=ping.nonce, sender=good.sender, public_key=good.public_key, signature=bytes(64))
    mine.requests.arrived(address, forged, 1.1)
    assert len(mine.table) == 0
    assert mine.requests.blacklist.is_unheard(address, 1.2)


def test_a_crowd_is_met_a_few_at_a_time_and_few_addresses_are_remembered() -> None:
    mine = core()
    for number in range(3 * MOST_PROVING):
        mine.met(other(number)[1], 0.0)
    asked = pings(mine)
    assert len(asked) == MOST_PROVING
    for number, (address, ping) in enumerate(asked):
        mine.requests.arrived(address, proof(mine, other(number)[0], ping), 0.1)
    assert len(mine.remembered) == REMEMBERED
    mine.met(other(3 * MOST_PROVING)[1], 0.2)
    mine.met(other(3 * MOST_PROVING + 1)[1], 0.2)
    assert len(pings(mine)) <= 2


def test_a_greeting_ends_with_what_became_of_it_and_timers_come_in_order() -> None:
    mine, (identity, contact) = core(), other(1)
    heard: list[tuple[str, bool, float]] = []
    mine.greet(contact.address, 0.0, lambda ok, now_s: heard.append(("greeted", ok, now_s)))
    ((address, ping),) = pings(mine)
    mine.at(0.6, lambda now_s: heard.append(("timer", True, now_s)))
    assert mine.wakes_s == 0.6
    mine.pass_time(0.6)
    mine.requests.arrived(address, proof(mine, identity, ping), 0.7)
    mine.greet(Address(bytes([10, 9, 9, 9]), 1), 1.0, lambda ok, now_s: heard.append(("greeted", ok, now_s)))
    while mine.wakes_s is not None:
        mine.pass_time(mine.wakes_s)
    assert heard[:2] == [("timer", True, 0.6), ("greeted", True, 0.7)]
    assert heard[2][:2] == ("greeted", False)
