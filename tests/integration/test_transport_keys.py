"""Encrypted endpoints on real sockets: members are heard in their own names, and nobody else is heard at all."""

import contextlib
import socket
import struct
import threading
import time

import pytest
import torch

from ring_allreduce import InvalidInput, UnknownPeer
from ring_allreduce.transport import (
    Codec,
    DropCause,
    KeyPair,
    Keys,
    Lane,
    Message,
    PeerAddress,
    TransportLimits,
    ZmqEndpoint,
)

pytestmark = pytest.mark.timeout(60)

TOKEN = b"0123456789abcdef"
DEADLINE_S = 20.0
QUIET_S = 0.5
"""Long enough for a handshake on loopback, many times over: what has not come by then does not come."""

PAIRS = {name: KeyPair.make() for name in ("a", "b", "c")}
ALLOWED = {name: pair.public for name, pair in PAIRS.items()}
SECRET_WORDS = b"what only members may read"


class Note(Message, frozen=True, kw_only=True, tag="note"):
    number: int = 0
    text: str = ""


CODEC = Codec([Note])


@pytest.fixture
def make():
    made = []

    def endpoint(name, keys=None):
        made.append(ZmqEndpoint(name, codec=CODEC, token=TOKEN, limits=TransportLimits(linger_s=1.0), keys=keys))
        return made[-1]

    yield endpoint
    for one in made:
        one.close()


def member(make, name):
    return make(name, Keys(PAIRS[name], ALLOWED))


def poll_until(here, condition):
    end, deliveries = time.monotonic() + DEADLINE_S, []
    while not condition(deliveries):
        assert time.monotonic() < end
        deliveries += here.poll(0.05)
    return deliveries


def poll_quietly(here):
    end, deliveries = time.monotonic() + QUIET_S, []
    while time.monotonic() < end:
        deliveries += here.poll(0.05)
    return deliveries


def assert_only_a_member_is_heard(make, listener, strangers):
    """What strangers sent does not arrive, neither before nor after a message of a member that does."""
    assert poll_quietly(listener) == []
    friend = member(make, "a")
    friend.connect({"b": listener.address})
    listener.connect({"a": friend.address})
    friend.send("b", Lane.PIPELINE, Note(number=7))
    assert [delivery.message.number for delivery in poll_until(listener, bool)] == [7]
    for stranger in strangers:
        assert stranger.stats.sent[listener.name, Lane.PIPELINE].messages > 0
    assert set(listener.stats.received) == {("a", Lane.PIPELINE)}


def test_members_exchange_tensors_on_both_lanes(make):
    a, b = member(make, "a"), member(make, "b")
    a.connect({"b": b.address})
    b.connect({"a": a.address})
    tensor = torch.arange(300_000.0)
    for lane in Lane:
        a.send("b", lane, Note(text=lane.value), [tensor])
    arrived = poll_until(b, lambda got: len(got) == 2)
    assert {delivery.message.text for delivery in arrived} == {"pipeline", "bulk"}
    assert all(delivery.sender == "a" and torch.equal(delivery.tensors[0], tensor) for delivery in arrived)
    assert not b.stats.dropped


def test_a_key_that_is_not_allowed_is_refused_and_counted(make):
    listener, unknown = member(make, "b"), KeyPair.make()
    stranger = make("a", Keys(unknown, {"a": unknown.public, "b": ALLOWED["b"]}))
    stranger.connect({"b": listener.address})
    for lane in Lane:
        stranger.send("b", lane, Note(number=1))
    poll_until(listener, lambda got: listener.stats.dropped[DropCause.WRONG_TOKEN] == 2)
    assert_only_a_member_is_heard(make, listener, [stranger])


def test_the_token_without_a_key_is_not_enough(make):
    listener, plain = member(make, "b"), make("a")
    plain.connect({"b": listener.address})
    plain.send("b", Lane.PIPELINE, Note(number=1))
    assert_only_a_member_is_heard(make, listener, [plain])


def test_a_member_with_keys_tells_a_plain_endpoint_nothing(make):
    plain, encrypted = make("b"), member(make, "a")
    plain.connect({"a": encrypted.address})
    encrypted.connect({"b": plain.address})
    encrypted.send("b", Lane.PIPELINE, Note(number=1))
    assert poll_quietly(plain) == []
    friend = make("c")
    friend.connect({"b": plain.address})
    plain.connect({"c": friend.address})
    friend.send("b", Lane.PIPELINE, Note(number=2))
    assert [delivery.message.number for delivery in poll_until(plain, bool)] == [2]


def test_who_answers_with_another_key_gets_nothing(make):
    """A man in the middle that stands at b's address: an allowed member even, but not b."""
    a, wrong = member(make, "a"), member(make, "c")
    a.connect({"b": wrong.address})
    wrong.connect({"a": a.address})
    a.send("b", Lane.PIPELINE, Note(number=1))
    assert poll_quietly(wrong) == []
    a.connect({"c": wrong.address})
    a.send("c", Lane.PIPELINE, Note(number=2))
    assert [delivery.message.number for delivery in poll_until(wrong, bool)] == [2]


def test_a_member_is_not_heard_in_the_name_of_another(make):
    listener = member(make, "b")
    impostor = make("a", Keys(PAIRS["c"], {"a": PAIRS["c"].public, "b": ALLOWED["b"]}))
    listener.connect({"a": impostor.address, "c": impostor.address})
    impostor.connect({"b": listener.address})
    impostor.send("b", Lane.PIPELINE, Note(number=1))
    poll_until(listener, lambda got: listener.stats.dropped[DropCause.FALSE_SENDER] == 1)
    assert listener.stats.dropped == {DropCause.FALSE_SENDER: 1}
    assert_only_a_member_is_heard(make, listener, [impostor])


def test_frames_without_a_handshake_end_the_connection(make):
    listener = member(make, "b")
    greeting = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
    forged = b"\x00" + bytes([len(TOKEN)]) + TOKEN
    for opening in (greeting + forged, greeting + b"\x04\xc8\x05HELLO" + bytes(194)):
        with socket.create_connection((listener.address.host, listener.address.bulk_port), timeout=5) as stranger:
            stranger.sendall(opening)
            end = time.monotonic() + DEADLINE_S
            while stranger.recv(4096):
                assert time.monotonic() < end
    assert_only_a_member_is_heard(make, listener, [])


@contextlib.contextmanager
def relayed(port):
    """A relay of one connection to `port` that keeps every byte: its own port, what was said, and what was answered."""
    said, answered = bytearray(), bytearray()
    relay = socket.create_server(("127.0.0.1", 0))
    relay.settimeout(DEADLINE_S)

    def pass_on(come_from, go_to, seen):
        with contextlib.suppress(OSError):  # a side has closed
            while data := come_from.recv(65536):
                seen.extend(data)
                go_to.sendall(data)

    def serve():
        inside, _ = relay.accept()
        outside = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
        for one, other, seen in ((inside, outside, said), (outside, inside, answered)):
            one.settimeout(DEADLINE_S)
            threading.Thread(target=pass_on, args=(one, other, seen), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    with relay:
        yield relay.getsockname()[1], said, answered


def test_what_crosses_the_network_cannot_be_read_there(make):
    """A relay that sees every byte, in both directions, and finds neither token nor words nor tensor."""
    listener, friend = member(make, "b"), member(make, "a")
    body = struct.pack("<8d", *range(8))
    with relayed(listener.address.pipeline_port) as (port, said, answered):
        friend.connect({"b": PeerAddress("127.0.0.1", port, listener.address.bulk_port)})
        listener.connect({"a": friend.address})
        friend.send("b", Lane.PIPELINE, Note(text=SECRET_WORDS.decode()), [torch.arange(8.0, dtype=torch.float64)])
        assert poll_until(listener, bool)[0].message.text == SECRET_WORDS.decode()
    seen = bytes(said + answered)
    assert len(seen) > len(SECRET_WORDS) + len(body)
    for clear in (SECRET_WORDS, TOKEN, TOKEN.hex().encode(), body, PAIRS["a"].secret.encode()):
        assert clear not in seen


def test_a_recorded_connection_of_a_member_is_not_heard_a_second_time(make):
    """All that a member has said, handshake and messages, said again by somebody who has recorded it."""
    listener, friend = member(make, "b"), member(make, "a")
    with relayed(listener.address.pipeline_port) as (port, said, _):
        friend.connect({"b": PeerAddress("127.0.0.1", port, listener.address.bulk_port)})
        listener.connect({"a": friend.address})
        friend.send("b", Lane.PIPELINE, Note(number=7))
        assert [delivery.message.number for delivery in poll_until(listener, bool)] == [7]
        recorded = bytes(said)
    assert len(recorded) > 200
    with socket.create_connection(("127.0.0.1", listener.address.pipeline_port), timeout=5) as stranger:
        stranger.sendall(recorded)
        end = time.monotonic() + DEADLINE_S
        with contextlib.suppress(ConnectionError):
            while stranger.recv(4096):
                assert time.monotonic() < end
    assert poll_quietly(listener) == []


def test_mistakes_are_told_before_anything_is_bound_or_sent(make):
    with pytest.raises(InvalidInput, match="no member 'd'"):
        make("d", Keys(PAIRS["a"], ALLOWED))
    with pytest.raises(InvalidInput, match="a: the allow-list has another public key"):
        make("a", Keys(PAIRS["b"], ALLOWED))
    a, b = member(make, "a"), member(make, "b")
    with pytest.raises(InvalidInput, match="no member 'd'"):
        a.connect({"b": b.address, "d": b.address})
    with pytest.raises(UnknownPeer):
        a.send("b", Lane.PIPELINE, Note())
