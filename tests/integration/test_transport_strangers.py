"""Strangers at an endpoint's port: refused at the handshake, before anything they send is held."""

import contextlib
import ctypes
import socket
import struct
import subprocess
import sys
import threading
import time

import psutil
import pytest
import torch

from ring_allreduce.transport import Codec, DropCause, Lane, Message, PeerAddress, TransportLimits, ZmqEndpoint
from ring_allreduce.transport.security.waiting_room import MOST_OF_ADDRESS
from ring_allreduce.transport.zmq.pieces import LARGEST_FRAME_BYTES
from tests.support.commands import ROOT, environment

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


@pytest.mark.parametrize("kind", [b"\x02", b"\x06"], ids=["message", "command"])
def test_a_frame_beyond_its_bound_ends_the_connection_at_its_head(listener, kind):
    """Nothing of it has come yet. A frame within the bound is waited for."""
    where = listener.address.host, listener.address.pipeline_port
    for size, ends in ((LARGEST_FRAME_BYTES + 1, True), (LARGEST_FRAME_BYTES, False)):
        with socket.create_connection(where, timeout=2.0) as stranger:
            stranger.sendall(greeting(b"PLAIN") + kind + struct.pack(">Q", size))
            ended = False
            with contextlib.suppress(TimeoutError):
                while stranger.recv(4096):
                    pass
                ended = True
            assert ended is ends


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


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who was admitted")
def test_so_many_silent_connections_are_open_and_no_more_and_a_peer_still_gets_in(listener):
    where = listener.address.host, listener.address.pipeline_port
    strangers = [socket.create_connection(where, timeout=DEADLINE_S) for _ in range(3 * MOST_OF_ADDRESS)]
    for stranger in strangers[: 2 * MOST_OF_ADDRESS]:  # the oldest are turned away
        with contextlib.suppress(ConnectionError):
            while stranger.recv(4096):
                pass
    friend = ZmqEndpoint("a", codec=CODEC, token=TOKEN, shared_memory=False)
    listener.connect({"a": friend.address})
    friend.connect({"b": listener.address})
    for number in range(10):
        friend.send("b", Lane.PIPELINE, Note(number=number))
    assert len(poll_until(listener, lambda got: len(got) == 10)) == 10
    # Once admitted, it stays, however many come.
    more = [socket.create_connection(where, timeout=DEADLINE_S) for _ in range(2 * MOST_OF_ADDRESS)]
    friend.send("b", Lane.PIPELINE, Note(number=10))
    assert [d.message.number for d in poll_until(listener, bool)] == [10]
    (count,) = listener.stats.strangers.counts.values()
    assert list(listener.stats.strangers.news(0.0)) == ["127.0.0.1"]
    assert count >= 2 * MOST_OF_ADDRESS
    for stranger in (*strangers, *more):
        stranger.close()
    friend.close()


@pytest.fixture
def hasty_threads():
    """Threads take turns as often as Python lets them, so that what two of them touch is met half done."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_five_hundred_connections_that_come_and_go_harm_no_exchange_however_threads_take_turns(listener, hasty_threads):
    friend = endpoint("a")
    friend.connect({"b": listener.address})
    listener.connect({"a": friend.address})
    address = listener.address

    def come_and_go(port):
        for number in range(250):
            with contextlib.suppress(OSError), socket.create_connection((address.host, port), timeout=5) as stranger:
                if number % 2:
                    stranger.sendall(greeting(b"PLAIN")[: 1 + number % 60])

    strangers = [
        threading.Thread(target=come_and_go, args=(port,)) for port in (address.pipeline_port, address.bulk_port)
    ]
    for stranger in strangers:
        stranger.start()
    sent, heard, end = 0, [], time.monotonic() + DEADLINE_S
    body = torch.arange(20_000.0)  # large enough to lie in shared memory
    while time.monotonic() < end:
        going = any(stranger.is_alive() for stranger in strangers)
        if not going and len(heard) == sent:
            break
        if going and sent < len(heard) + 4:
            friend.send("b", Lane.BULK, Note(number=sent), [body + sent])
            sent += 1
        friend.poll(0.0)
        heard += [(each.message.number, float(each.tensors[0][0])) for each in listener.poll(0.001)]
    for stranger in strangers:
        stranger.join(DEADLINE_S)
    assert sent > 4
    assert heard == [(number, float(number)) for number in range(sent)]
    friend.close()


class Allocated(ctypes.Structure):
    """glibc's struct mallinfo2, of which two fields count: bytes in use in all heaps, and in mappings of their own."""

    _fields_ = (("_before", ctypes.c_size_t * 4), ("mapped", ctypes.c_size_t), ("_between", ctypes.c_size_t * 2),
                ("in_heaps", ctypes.c_size_t), ("_after", ctypes.c_size_t * 2))  # fmt: skip


def held_from_strangers():
    """Write the MiB that a process's endpoint has allocated more than before: at most, and after the strangers' end.

    Resident memory would not tell: glibc keeps the free end of a thread's heap, for that thread's next allocation.
    It runs in a process of its own, in which nothing else allocates meanwhile.
    """
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Allocated

    def allocated_mib():
        now = mallinfo2()
        return (now.mapped + now.in_heaps) / MIB

    listener = endpoint("b")
    before = allocated_mib()
    frame = b"\x02" + struct.pack(">Q", MIB // 4) + bytes(MIB // 4 - 1)  # all but the last byte: it has to be held
    where = listener.address.host, listener.address.bulk_port
    strangers = [socket.create_connection(where, timeout=DEADLINE_S) for _ in range(MOST_OF_ADDRESS)]
    for stranger in strangers:
        stranger.sendall(greeting(b"PLAIN") + frame)
    peak, end = 0.0, time.monotonic() + DEADLINE_S
    while peak < 8 and time.monotonic() < end:
        time.sleep(0.02)
        peak = allocated_mib() - before
    for stranger in strangers:
        stranger.close()
    after, end = peak, time.monotonic() + DEADLINE_S
    while after > 1 and time.monotonic() < end:
        time.sleep(0.1)
        after = allocated_mib() - before
    listener.close()
    sys.stdout.write(f"{peak} {after}\n")


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="only glibc 2.33 and newer tells what is in use"
)
def test_what_strangers_made_it_hold_is_freed():
    code = "from tests.integration.test_transport_strangers import held_from_strangers; held_from_strangers()"
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=55
    )
    assert ran.returncode == 0, ran.stderr
    peak, after = map(float, ran.stdout.split())
    assert 8 < peak < 40
    assert after <= 1


def test_an_impostor_in_a_peer_s_place_cannot_make_a_sender_hold_more(listener):
    as_server = greeting(b"PLAIN")[:32] + b"\x01" + bytes(31)
    process = psutil.Process()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        listener.connect({"x": PeerAddress("127.0.0.1", port, port)})
        server.settimeout(DEADLINE_S)
        impostor, _ = server.accept()
        before, sent = process.memory_info().rss, 0
        with impostor, contextlib.suppress(ConnectionError):
            impostor.settimeout(DEADLINE_S)
            impostor.sendall(as_server + b"\x02" + struct.pack(">Q", 1 << 30))
            while sent < 300 * MIB:
                impostor.sendall(bytes(MIB))
                sent += MIB
        assert sent < 300 * MIB, "the connection goes on"
        assert process.memory_info().rss - before < 30 * MIB


def test_large_messages_of_a_peer_arrive_whole_though_strangers_frames_are_small():
    limits = TransportLimits(max_message_bytes=64 * MIB, linger_s=5.0)
    a, b = (ZmqEndpoint(name, codec=CODEC, token=TOKEN, limits=limits, shared_memory=False) for name in "ab")
    a.connect({"b": b.address})
    b.connect({"a": a.address})
    body = torch.arange(5 * MIB, dtype=torch.float32)
    a.send("b", Lane.BULK, Note(number=1), [body, body[:3], body[: MIB // 16]])
    end = time.monotonic() + DEADLINE_S
    while not (got := b.poll(0.02)):
        assert time.monotonic() < end
        a.poll(0.0)
    assert [len(tensor) for tensor in got[0].tensors] == [5 * MIB, 3, MIB // 16]
    assert all(torch.equal(tensor, body[: len(tensor)]) for tensor in got[0].tensors)
    a.close()
    b.close()


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
