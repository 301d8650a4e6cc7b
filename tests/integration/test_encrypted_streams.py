"""Streams inside CurveZMQ: bytes in order both ways, an end that is noticed at once, and no way in for strangers."""

import contextlib
import os
import queue
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time

import psutil
import pytest
import zmq

from ring_allreduce import DeadlinePassed, InvalidInput, TransportError
from ring_allreduce.transport import KeyPair, Keys
from ring_allreduce.transport.security.doorkeeper import present_keys
from ring_allreduce.transport.security.waiting_room import MOST_OF_ADDRESS
from ring_allreduce.transport.zmq import encrypted_streams
from ring_allreduce.transport.zmq.encrypted_streams import EncryptedListener, EncryptedStream

pytestmark = pytest.mark.timeout(60)

DEADLINE_S = 20.0
PAIRS = {name: KeyPair.make() for name in ("desk", "attic", "rendezvous")}
ALLOWED = {name: pair.public for name, pair in PAIRS.items()}


def keys(name):
    return Keys(PAIRS[name], ALLOWED)


@pytest.fixture
def listener():
    here = EncryptedListener("127.0.0.1", 0, keys("rendezvous"))
    yield here
    here.close()
    assert_no_thread_is_left()


def assert_no_thread_is_left():
    assert "encrypted-listener" not in {thread.name for thread in threading.enumerate()}


def stream(listener, name="desk", own=None, timeout_s=DEADLINE_S):
    return EncryptedStream("127.0.0.1", listener.getsockname()[1], own or keys(name), "rendezvous", timeout_s)


def accept(listener):
    assert select.select([listener], [], [], DEADLINE_S)[0]
    there, name = listener.accept()
    there.settimeout(DEADLINE_S)
    return there, name


def read(connection, count):
    data = b""
    while len(data) < count and (more := connection.recv(65536)):
        data += more
    return data


def nobody_comes(listener, within_s=0.3):
    return not select.select([listener], [], [], within_s)[0]


def test_bytes_travel_both_ways_in_order_and_each_stream_is_its_member_s(listener):
    ends = {}
    for name in ("desk", "attic"):
        here = stream(listener, name)
        here.settimeout(DEADLINE_S)
        there, who = accept(listener)
        assert who == name
        ends[name] = (here, there)
    said = {name: random.Random(name).randbytes(300_000) for name in ends}
    for name, (here, there) in ends.items():
        for talker, hearer in ((here, there), (there, here)):
            thread = threading.Thread(target=talker.sendall, args=(said[name],))
            thread.start()
            assert read(hearer, len(said[name])) == said[name]
            thread.join(DEADLINE_S)
    for here, there in ends.values():
        here.close()
        assert there.recv(1) == b""
        there.close()


def test_what_was_written_before_closing_arrives_and_then_the_end(listener):
    here = stream(listener)
    there, _ = accept(listener)
    here.sendall(b"leaving")
    here.close()
    assert read(there, 100) == b"leaving"
    here = stream(listener)
    here.settimeout(DEADLINE_S)
    there, _ = accept(listener)
    there.sendall(b"refused")
    there.close()
    assert read(here, 100) == b"refused"
    here.close()


@pytest.mark.parametrize("talker", ["member", "rendezvous"])
def test_of_much_that_was_written_before_the_end_nothing_is_lost(listener, talker):
    here = stream(listener)
    there, _ = accept(listener)
    said = [random.Random(number).randbytes(1000) for number in range(5 * encrypted_streams.HEARD_AT_ONCE)]
    speaks, hears = (here, there) if talker == "member" else (there, here)
    for one in said:  # each is a message of its own, or nearly so
        speaks.sendall(one)
        time.sleep(0)
    speaks.close()
    hears.settimeout(DEADLINE_S)
    assert read(hears, 1 << 30) == b"".join(said)
    hears.close()


@pytest.mark.parametrize("talker", ["member", "rendezvous"])
def test_the_last_words_of_who_goes_without_listening_arrive(listener, talker):
    here = stream(listener)
    there, _ = accept(listener)
    goes, stays = (here, there) if talker == "member" else (there, here)
    stays.sendall(bytes(1 << 20))  # more than who goes takes: what passes it on waits in the middle
    time.sleep(0.2)
    goes.sendall(b"last words")
    goes.close()
    stays.settimeout(DEADLINE_S)
    assert read(stays, 1 << 20) == b"last words"
    stays.close()


def test_the_end_of_a_process_ends_its_stream_at_once_and_no_other(listener):
    other = stream(listener, "attic")
    stays, _ = accept(listener)
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            stream(listener).sendall(b"here")
            time.sleep(DEADLINE_S)
        os._exit(0)
    there, _ = accept(listener)
    assert read(there, 4) == b"here"
    killed_s = time.monotonic()
    os.kill(child, signal.SIGKILL)
    assert there.recv(1) == b""
    assert time.monotonic() - killed_s < 5
    os.waitpid(child, 0)
    # The next one is given the descriptor of the one that went, and lives on.
    again = stream(listener)
    anew, who = accept(listener)
    assert who == "desk"
    for here, end in ((again, anew), (other, stays)):
        here.sendall(b"still")
        assert read(end, 5) == b"still"
        here.close()


def client(listener, name, begin):
    """A process that opens a stream when `begin` is readable, says "here", and then gives back what it hears."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            assert select.select([begin], [], [], DEADLINE_S)[0]
            here = stream(listener, name)
            here.settimeout(DEADLINE_S)
            here.sendall(b"here")
            while data := here.recv(65536):
                here.sendall(data)
        os._exit(0)
    return child


def test_the_next_one_lives_on_the_descriptor_of_one_that_went(listener, monkeypatch):
    """Another has come on the descriptor of a connection of which it was not heard yet that it went."""
    hear, may_go_on, halted, descriptors = listener._hear, threading.Event(), threading.Event(), []
    may_go_on.set()
    opened = encrypted_streams.EncryptedListener._begin

    def hear_when_told():
        _ = may_go_on.is_set() or halted.set()
        return hear() if may_go_on.wait(DEADLINE_S) else []

    monkeypatch.setattr(listener, "_hear", hear_when_told)
    monkeypatch.setattr(
        encrypted_streams.EncryptedListener,
        "_begin",
        lambda self, *who: (descriptors.append(list(self._identities)), opened(self, *who)),
    )
    (now, begin_first), (later, begin_second) = os.pipe(), os.pipe()
    # Both are forked before there is a stream, of which they would hold an end.
    second, first = client(listener, "attic", later), client(listener, "desk", now)
    os.write(begin_first, b"!")
    went, _ = accept(listener)
    assert read(went, 4) == b"here"
    may_go_on.clear()
    went.sendall(b"!")  # one more turn begins, and halts after it was asked who went
    assert halted.wait(DEADLINE_S)
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    # The listener's thread stands still, so its sockets can be asked from here.
    assert listener._monitor.poll(1000 * DEADLINE_S), "its connection is closed here, too"
    os.write(begin_second, b"!")
    assert listener._router.poll(1000 * DEADLINE_S), "the other has said who it is"
    may_go_on.set()
    lives, who = accept(listener)
    assert (who, descriptors[0]) == ("attic", descriptors[1])
    assert read(went, 2) in (b"", b"!")  # and then the end
    lives.sendall(b"still")
    assert read(lives, 9) == b"herestill"
    lives.close()
    os.waitpid(second, 0)
    for end in (now, begin_first, later, begin_second):
        os.close(end)


def test_what_does_not_begin_a_stream_is_none(listener):
    with zmq.Context() as context, context.socket(zmq.DEALER) as raw:
        present_keys(raw, keys("desk"), "rendezvous")
        raw.set(zmq.LINGER, 0)
        raw.connect("tcp://{}:{}".format(*listener.getsockname()))
        raw.send(b"the rest of a stream that was lost")
        assert nobody_comes(listener)
        raw.send(b"")
        raw.send(b"begun")
        there, _ = accept(listener)
        assert read(there, 5) == b"begun"


def test_a_rendezvous_that_ends_ends_its_streams(listener, monkeypatch):
    say_last, may_go_on = listener._say_last, threading.Event()
    monkeypatch.setattr(listener, "_say_last", lambda: (say_last(), may_go_on.wait(DEADLINE_S)))
    here = stream(listener)
    here.settimeout(DEADLINE_S)
    there, _ = accept(listener)
    waiting = stream(listener, "attic")  # nobody has accepted it
    waiting.settimeout(DEADLINE_S)
    listener._stop_writer.close()  # as if its thread had failed: close() has not been called yet
    assert here.recv(1) == b""
    assert waiting.recv(1) == b""
    assert there.recv(1) == b""
    with pytest.raises(OSError, match="the listener has ended"):  # once its end was told, it has ended
        listener.accept()
    may_go_on.set()
    here.close()
    waiting.close()


@pytest.mark.parametrize("closes_first", ["stream", "listener"])
def test_what_was_written_before_the_listener_ends_arrives(listener, closes_first):
    here = stream(listener)
    here.settimeout(DEADLINE_S)
    there, _ = accept(listener)
    there.sendall(b"the last word" * 1000)
    if closes_first == "stream":
        there.close()
    listener.close()
    assert read(here, 1 << 30) == b"the last word" * 1000
    there.close()
    here.close()


def test_a_listener_may_start_later():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made = []

    def start():
        time.sleep(0.5)
        made.append(EncryptedListener("127.0.0.1", port, keys("rendezvous")))

    thread = threading.Thread(target=start)
    thread.start()
    here = EncryptedStream("127.0.0.1", port, keys("desk"), "rendezvous", DEADLINE_S)
    thread.join(DEADLINE_S)
    assert accept(made[0])[1] == "desk"
    here.close()
    made[0].close()
    with pytest.raises(DeadlinePassed, match=r"an encrypted handshake with 'rendezvous' at 127.0.0.1"):
        EncryptedStream("127.0.0.1", port, keys("desk"), "rendezvous", 0.3)


def test_a_key_that_is_not_allowed_is_told_so_and_does_not_get_in(listener):
    stranger = KeyPair.make()
    own = Keys(stranger, {"desk": stranger.public, "rendezvous": ALLOWED["rendezvous"]})
    with pytest.raises(
        InvalidInput, match=f"'rendezvous' at 127.0.0.1:{listener.getsockname()[1]} refuses the key {stranger.public}"
    ):
        stream(listener, own=own)
    assert nobody_comes(listener)


def test_who_answers_in_the_place_of_the_rendezvous_hears_nothing():
    false = EncryptedListener("127.0.0.1", 0, Keys(PAIRS["attic"], ALLOWED))
    with pytest.raises(DeadlinePassed):
        stream(false, timeout_s=0.5)
    assert nobody_comes(false)
    false.close()


def test_garbage_in_clear_does_not_get_in(listener):
    for garbage in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE" + bytes(47) + b"\x00\x00" * 50,
    ):
        with socket.create_connection(("127.0.0.1", listener.getsockname()[1]), timeout=DEADLINE_S) as stranger:
            stranger.sendall(garbage)
            assert nobody_comes(listener)
    here = stream(listener)
    assert accept(listener)[1] == "desk"
    here.close()


def test_a_member_that_never_stops_talking_keeps_nothing_from_others_and_the_end_from_nobody(listener):
    quiet = stream(listener, "attic")
    quiet.settimeout(DEADLINE_S)
    to_quiet, _ = accept(listener)
    talk = f"""
import zmq
dealer = zmq.Context().socket(zmq.DEALER)
dealer.set(zmq.CURVE_SERVERKEY, bytes.fromhex({ALLOWED["rendezvous"]!r}))
dealer.set(zmq.CURVE_PUBLICKEY, bytes.fromhex({PAIRS["desk"].public!r}))
dealer.set(zmq.CURVE_SECRETKEY, bytes.fromhex({PAIRS["desk"].secret!r}))
dealer.connect("tcp://127.0.0.1:{listener.getsockname()[1]}")
dealer.send(b"")
while True:
    dealer.send(b"x")
"""
    talkers = [subprocess.Popen([sys.executable, "-c", talk]) for _ in range(2)]
    readers = []

    def hear(heard):
        with contextlib.suppress(OSError):
            while heard.recv(65536):
                pass

    try:
        for _ in talkers:
            heard, _ = accept(listener)
            readers.append(threading.Thread(target=hear, args=[heard], daemon=True))
            readers[-1].start()
        for number in range(5):
            to_quiet.sendall(bytes([number]))
            assert quiet.recv(1) == bytes([number])
        listener.close()
        assert_no_thread_is_left()
    finally:
        for talker in talkers:
            talker.kill()
            talker.wait()
        listener.close()
        for reader in readers:
            reader.join(DEADLINE_S)
        quiet.close()


def test_a_listener_ends_though_many_connections_end_with_words_left_for_them(monkeypatch):
    """Without a linger at bind() its thread stayed forever, once in some 20 rounds: a race within ZeroMQ."""
    bind, lingers_ms = zmq.Socket.bind, []
    monkeypatch.setattr(
        zmq.Socket, "bind", lambda self, *at: (lingers_ms.append(self.get(zmq.LINGER)), bind(self, *at))[1]
    )
    members = f"""
import time, zmq
context, many = zmq.Context(), []
for _ in range({MOST_OF_ADDRESS - 4}):
    many.append(context.socket(zmq.DEALER))
    many[-1].set(zmq.CURVE_SERVERKEY, bytes.fromhex({ALLOWED["rendezvous"]!r}))
    many[-1].set(zmq.CURVE_PUBLICKEY, bytes.fromhex({PAIRS["desk"].public!r}))
    many[-1].set(zmq.CURVE_SECRETKEY, bytes.fromhex({PAIRS["desk"].secret!r}))
    many[-1].connect("tcp://127.0.0.1:PORT")
    many[-1].send(b"")
time.sleep({DEADLINE_S})
"""
    for _ in range(3):
        here = EncryptedListener("127.0.0.1", 0, keys("rendezvous"))
        process = subprocess.Popen([sys.executable, "-c", members.replace("PORT", str(here.getsockname()[1]))])
        streams = [accept(here)[0] for _ in range(MOST_OF_ADDRESS - 4)]
        process.kill()
        here.close()
        assert_no_thread_is_left()
        process.wait()
        for one in streams:
            one.close()
    assert lingers_ms
    assert all(0 <= linger_ms <= 1000 * encrypted_streams.LINGER_S for linger_ms in lingers_ms)


def test_a_port_that_is_taken_is_told(listener):
    with pytest.raises(TransportError, match=f"cannot listen on 127.0.0.1:{listener.getsockname()[1]}"):
        EncryptedListener("127.0.0.1", listener.getsockname()[1], keys("rendezvous"))


def test_closing_leaves_no_thread_and_no_descriptor_behind(listener):
    stream(listener).close()
    accept(listener)[0].close()
    threads, descriptors = threading.active_count(), psutil.Process().num_fds()
    for _ in range(5):
        here = EncryptedListener("127.0.0.1", 0, keys("rendezvous"))
        end = stream(here)
        there, _ = accept(here)
        end.close()
        end.close()
        there.close()
        here.close()
        here.close()
    assert threading.active_count() == threads
    assert psutil.Process().num_fds() <= descriptors


def test_without_a_free_descriptor_a_stream_ends_and_the_next_one_is_served(listener, monkeypatch):
    make = socket.socketpair

    def none_free():
        if threading.current_thread().name == "encrypted-listener":
            raise OSError(24, "Too many open files")
        return make()

    monkeypatch.setattr(socket, "socketpair", none_free)
    here = stream(listener)
    here.settimeout(DEADLINE_S)
    assert here.recv(1) == b""
    here.close()
    monkeypatch.undo()
    here = stream(listener)
    assert accept(listener)[1] == "desk"
    here.close()


class TakenMeanwhile(queue.SimpleQueue):
    """Between the question whether anybody is there and the answer's use, accept() takes who was."""

    def empty(self):
        was = super().empty()
        with contextlib.suppress(queue.Empty):
            self.get_nowait()[0].close()
        return was


def test_a_listener_ends_whole_though_its_last_stream_is_accepted_meanwhile(listener):
    listener._arrived = TakenMeanwhile()
    here = stream(listener)
    assert select.select([listener], [], [], DEADLINE_S)[0]
    listener.close()
    EncryptedListener(*listener.getsockname(), keys("rendezvous")).close()  # the address is free again
    here.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who was admitted")
def test_so_many_silent_connections_are_open_and_no_more_and_a_member_still_gets_in(listener):
    def silent(count):
        return [socket.create_connection(listener.getsockname(), timeout=DEADLINE_S) for _ in range(count)]

    strangers = silent(3 * MOST_OF_ADDRESS)
    for stranger in strangers[: 2 * MOST_OF_ADDRESS]:  # the oldest are turned away
        with contextlib.suppress(ConnectionError):
            while stranger.recv(4096):
                pass
    here = stream(listener)
    there, name = accept(listener)
    assert name == "desk"
    strangers += silent(2 * MOST_OF_ADDRESS)
    here.sendall(b"still here")
    assert read(there, 10) == b"still here"
    assert listener.strangers.counts["127.0.0.1"] >= 2 * MOST_OF_ADDRESS
    for one in (*strangers, here, there):
        one.close()
