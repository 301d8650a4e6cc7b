"""Strangers at an endpoint's port: refused at the handshake, before anything they send is held."""

import contextlib
import socket
import struct
import threading
import time

import psutil
import pytest

from ring_allreduce.transport import Codec, DropCause, Lane, Message, TransportLimits, ZmqEndpoint

pytestmark = pytest.mark.timeout(60)

TOKEN = b"0123456789abcdef"
DEADLINE_S = 20.0
MIB = 1 << 20


class Note(Message, frozen=True, kw_only=True, tag="note"):
    number: int = 0


CODEC = Codec([Note])


def endpoint(name, token=TOKEN):
    return ZmqEndpoint(name, codec=CODEC, token=token, limits=TransportLimits(max_message_bytes=MIB, linger_s=5.0))


@pytest.fixture
def listener():
    here = endpoint("b")
    yield here
    here.close()


def poll_until(here, condition):
    end = time.monotonic() + DEADLINE_S
    deliveries = []
    while not condition(deliveries):
        assert time.monotonic() < end
        deliveries += here.poll(0.05)
    return deliveries


def greeting(mechanism):
    """ZMTP 3.0: signature, version, mechanism, as-server, filler."""
    return b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + mechanism.ljust(20, b"\0") + bytes(32)


def command(name, body):
    return b"\x04" + bytes([1 + len(name) + len(body)]) + bytes([len(name)]) + name + body


def plain_hello(user, password):
    return command(b"HELLO", bytes([len(user)]) + user + bytes([len(password)]) + password)


NULL_READY = command(b"READY", b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER")

STRANGERS = {
    "no mechanism": greeting(b"NULL") + NULL_READY,
    "wrong token": greeting(b"PLAIN") + plain_hello(b"member", bytes(16).hex().encode()),
    "right token, wrong place": greeting(b"PLAIN") + plain_hello(TOKEN.hex().encode(), b"member"),
    "token as it is": greeting(b"PLAIN") + plain_hello(b"member", TOKEN),
    "no hello": greeting(b"PLAIN"),
    "initiates unasked": greeting(b"PLAIN") + command(b"INITIATE", b""),
}


@pytest.mark.parametrize("opening", STRANGERS.values(), ids=STRANGERS)
def test_an_endless_message_of_a_stranger_ends_its_connection_and_is_never_held(listener, opening):
    """Each frame is under the limit, more always follow, and no message is ever whole: no check of a message helps."""
    frame = b"\x03" + struct.pack(">Q", MIB // 2) + bytes(MIB // 2)  # a long frame, MORE follows
    process = psutil.Process()
    before, sent = process.memory_info().rss, 0
    with socket.create_connection((listener.address.host, listener.address.pipeline_port), timeout=5) as stranger:
        with contextlib.suppress(ConnectionError):
            stranger.sendall(opening)
            while sent < 300 * MIB:
                stranger.sendall(frame)
                sent += len(frame)
        assert process.memory_info().rss - before < 30 * MIB
    assert sent < 30 * MIB, "the connection goes on"
    assert listener.poll(0.0) == []


def test_silence_ends_a_connection(listener, monkeypatch):
    monkeypatch.setattr("ring_allreduce.transport.security.doorkeeper.HANDSHAKE_S", 1)
    impatient = endpoint("c")
    with socket.create_connection((impatient.address.host, impatient.address.bulk_port), timeout=10) as stranger:
        stranger.sendall(greeting(b"PLAIN"))
        with contextlib.suppress(ConnectionError):
            while stranger.recv(4096):
                pass
    impatient.close()


def test_peers_are_admitted_while_nobody_polls_and_another_run_is_refused_and_counted(listener):
    friend, stranger = endpoint("a"), endpoint("a", token=bytes(16))
    for one in (friend, stranger):
        one.connect({"b": listener.address})
    listener.connect({"a": friend.address})
    stranger.send("b", Lane.PIPELINE, Note(number=1))
    friend.send("b", Lane.PIPELINE, Note(number=2))
    # Both lanes of the stranger knock; neither is asked for anything more.
    deliveries = poll_until(listener, lambda got: got and listener.stats.dropped[DropCause.WRONG_TOKEN] == 2)
    assert [delivery.message.number for delivery in deliveries] == [2]
    assert listener.stats.dropped == {DropCause.WRONG_TOKEN: 2}
    friend.close()


def test_what_is_sent_before_closing_arrives_though_the_receiver_was_away(listener):
    friend = endpoint("a")
    listener.connect({"a": friend.address})
    friend.connect({"b": listener.address})
    friend.send("b", Lane.PIPELINE, Note(number=3))
    friend.close()
    assert [d.message.number for d in poll_until(listener, bool)] == [3]


def test_closing_leaves_no_thread_and_no_descriptor_behind():
    endpoint("warm").close()
    threads, descriptors = threading.active_count(), psutil.Process().num_fds()
    for _ in range(5):
        a, b = endpoint("a"), endpoint("b")
        a.connect({"b": b.address})
        a.close()
        b.close()
        b.close()
    assert threading.active_count() == threads
    assert psutil.Process().num_fds() <= descriptors
