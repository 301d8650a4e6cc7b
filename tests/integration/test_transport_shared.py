"""Peers of one machine: bodies lie in shared memory, and strangers, liars and the dead do no harm."""

import contextlib
import fcntl
import os
import socket
import struct
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

from ring_allreduce.transport import Codec, DropCause, KeyPair, Keys, Lane, LinkShape, Message, NodeShape, ZmqEndpoint
from ring_allreduce.transport.shared.channel import INLINE_BYTES, LENT, MAGIC, UNTAKEN, OutgoingChannel, channel_name
from ring_allreduce.transport.shared.listener import MOST_UNKNOWN, IncomingChannel, SharedMemoryListener, listen
from ring_allreduce.transport.shared.memory import MOST_LENT, LentMemory
from ring_allreduce.transport.zmq import zmq_endpoint

pytestmark = pytest.mark.timeout(60)

TOKEN = b"0123456789abcdef"
DEADLINE_S = 20.0
NOTHING_LENT = LentMemory(available=False)


class Note(Message, frozen=True, kw_only=True, tag="note"):
    number: int = 0


def endpoint(name, **options):
    return ZmqEndpoint(name, codec=Codec([Note]), token=TOKEN, **options)


@pytest.fixture
def dropped():
    """What the listener has dropped, by cause."""
    return Counter()


@pytest.fixture
def listener(dropped):
    found = SharedMemoryListener(f"\0test/{os.getpid()}", TOKEN, dropped, 1 << 30)
    yield found
    found.close()


@pytest.fixture
def channels(monkeypatch):
    """The channels that endpoints of this process have made, in order."""
    made, connect = [], OutgoingChannel.connect

    def connected(*given):
        channel = connect(*given)
        made.append(channel)
        return channel

    monkeypatch.setattr(OutgoingChannel, "connect", connected)
    return made


@contextlib.contextmanager
def socket_of(channel):
    """The socket of a channel, to treat it as the system might."""
    descriptor, _ = channel.watch()
    with socket.socket(fileno=os.dup(descriptor)) as found:
        yield found


def mapped():
    """The mappings of shared memory in this process: (inode, bytes), each as often as it is mapped."""
    found = Counter()
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "memfd:ring_allreduce" in line:
            first, last = (int(edge, 16) for edge in line.split()[0].split("-"))
            found[line.split()[4], last - first] += 1
    return found


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def line_to(listener, lane=Lane.BULK, lent=NOTHING_LENT):
    line = OutgoingChannel.connect(f"\0test/{os.getpid()}", TOKEN, lane, lent)
    assert line is not None
    listener.look()
    return line


def taken(listener, lane=Lane.BULK, most=1000):
    listener.look()
    return [[bytes(frame) for frame in frames] for frames in listener.take(lane, most)]


def raw(listener, *datagrams):
    """A process of the same user that says anything at all."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(f"\0test/{os.getpid()}")
    for datagram in datagrams:
        connection.send(datagram)
    listener.look()
    return connection


def received(receiver, sender, count):
    deliveries, end = [], time.monotonic() + DEADLINE_S
    while len(deliveries) < count:
        assert time.monotonic() < end
        sender.poll(0)
        deliveries += receiver.poll(0.05)
    return deliveries


def shared(tensor):
    """Whether `tensor` lies in memory that this process shares."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(edge, 16) for edge in line.split()[0].split("-"))
        if first <= tensor.data_ptr() < last:
            return "memfd:ring_allreduce" in line
    return False


@pytest.mark.parametrize("choice", ["default", "off at one", "off at the other", "keys", "emulated"])
def test_large_tensors_lie_in_shared_memory_unless_told_otherwise(choice):
    options = {"a": {}, "b": {}}
    if choice.startswith("off"):
        options["b" if choice.endswith("other") else "a"]["shared_memory"] = False
    if choice == "keys":
        pairs = {name: KeyPair.make() for name in "ab"}
        allowed = {name: pair.public for name, pair in pairs.items()}
        options = {name: {"keys": Keys(pairs[name], allowed)} for name in "ab"}
    if choice == "emulated":
        options["a"]["links"] = {"b": LinkShape(bytes_per_s=1e9, latency_s=0.001)}
    a, b = (endpoint(name, **options[name]) for name in "ab")
    try:
        a.connect({"b": b.address})
        b.connect({"a": a.address})
        sent = torch.arange(50_000.0)
        a.send("b", Lane.BULK, Note(), [sent])
        (delivery,) = received(b, a, 1)
        assert torch.equal(delivery.tensors[0], sent)
        assert shared(delivery.tensors[0]) == (choice in ("default", "emulated"))
    finally:
        a.close()
        b.close()


@pytest.mark.parametrize("way", ["lent memory", "shared memory", "tcp", "keys"])
@pytest.mark.parametrize("narrow", ["uplink", "downlink"])
def test_no_way_goes_around_what_is_emulated(way, narrow):
    options = {name: {"shared_memory": way != "tcp"} for name in "abc"}
    if way == "keys":
        pairs = {name: KeyPair.make() for name in options}
        allowed = {name: pair.public for name, pair in pairs.items()}
        options = {name: {"keys": Keys(pairs[name], allowed)} for name in options}
    fast, slow = 1e9, 1e6
    node = NodeShape(
        slow if narrow == "uplink" else fast, slow if narrow == "downlink" else fast, {"b": fast, "c": fast}
    )
    links = {peer: LinkShape(fast, 0.0) for peer in "bc"}
    a, b, c = (
        endpoint(name, **options[name], **({"node": node, "links": links} if name == "a" else {})) for name in "abc"
    )
    ends = {"a": a, "b": b, "c": c}
    try:
        for end in ends.values():
            end.connect({name: other.address for name, other in ends.items()})
        made = {
            name: end.empty(100_000, torch.uint8) if way == "lent memory" else torch.empty(100_000, dtype=torch.uint8)
            for name, end in ends.items()
        }
        pairs_ways = [("a", "b"), ("a", "c")] if narrow == "uplink" else [("b", "a"), ("c", "a")]
        began_s, count = time.monotonic(), 0
        for number in range(2):
            for source, target in pairs_ways:
                ends[source].send(target, Lane.BULK, Note(number=number), [made[source].fill_(7)])
        while count < 4:
            assert time.monotonic() < began_s + DEADLINE_S
            for end in ends.values():
                for delivery in end.poll(0.005):
                    count += 1
                    assert int(delivery.tensors[0].sum()) == 700_000
        took_s = time.monotonic() - began_s
        assert took_s >= (0.4 if narrow == "uplink" else 0.3)  # a downlink begins with the first byte that comes
        assert a.stats.lateness.messages == 4
    finally:
        for end in ends.values():
            end.close()


def test_what_was_held_up_of_a_peer_that_was_forgotten_is_dropped():
    a = endpoint("a", node=NodeShape(1e9, 1e6, {"b": 1e9}))
    b = endpoint("b")
    try:
        a.connect({"b": b.address})
        b.connect({"a": a.address})
        b.send("a", Lane.BULK, Note(), [torch.zeros(200_000, dtype=torch.uint8)])
        end_s = time.monotonic() + DEADLINE_S
        while not a.stats.received["b", Lane.BULK].messages:
            assert time.monotonic() < end_s
            b.poll(0)
            assert a.poll(0) == []
        a.disconnect(["b"])
        while not a.stats.dropped:
            assert time.monotonic() < end_s
            assert a.poll(0.05) == []
        assert a.stats.dropped == {DropCause.UNKNOWN_SENDER: 1}
    finally:
        a.close()
        b.close()


def test_a_sender_may_write_to_its_tensor_again_once_nothing_is_queued():
    a, b = endpoint("a"), endpoint("b")
    try:
        a.connect({"b": b.address})
        b.connect({"a": a.address})
        sent = torch.ones(50_000)
        a.send("b", Lane.PIPELINE, Note(), [sent])
        sent.zero_()
        assert received(b, a, 1)[0].tensors[0].sum() == 50_000
    finally:
        a.close()
        b.close()


def test_a_reader_that_takes_nothing_holds_the_sender_back_until_it_does(listener):
    line, sent = line_to(listener), 0
    while line.takes():
        line.send([b"head", bytes(100_000)])
        sent += 1
    assert sent == UNTAKEN[Lane.BULK]
    assert len(taken(listener, most=2)) == 2
    assert not line.takes()
    assert len(taken(listener)) == sent - 2
    assert line.takes()
    line.close()


def test_memory_is_used_again(listener):
    before, line = mapped(), line_to(listener)
    for number in range(200):
        assert line.takes()
        line.send([b"head", number.to_bytes(4, "little") * 50_000])
        assert taken(listener) == [[b"head", number.to_bytes(4, "little") * 50_000]]
    assert sum(n_bytes for _, n_bytes in mapped() - before) <= 2 * 16 << 20
    line.close()


@pytest.mark.parametrize("sizes", [(0,), (10,), (10, 0, 10), (10, 16_384), (20_000,), (20_000, 5), (200_000, 1, 0, 9)])
def test_frames_of_any_size_arrive(listener, sizes):
    line = line_to(listener)
    frames = [bytes([index + 1]) * size for index, size in enumerate(sizes)]
    line.send(frames)
    assert taken(listener) == [frames]
    line.close()


def test_what_lies_in_lent_memory_is_read_there(listener):
    lent = LentMemory(available=True)
    line, vector = line_to(listener, lent=lent), lent.empty(100_000, torch.float32)
    numbers = memoryview(vector.numpy()).cast("B")
    vector.fill_(1.0)
    assert line.send([b"head", numbers[80_000:]])
    assert line.send([b"again", numbers[:200_000]])
    listener.look()
    first, second = ([bytes(frames[0]), frames[1]] for frames in listener.take(Lane.BULK, 10))
    assert (first[0], second[0]) == (b"head", b"again")
    vector.fill_(2.0)
    assert torch.frombuffer(first[1], dtype=torch.float32).tolist() == [2.0] * 80_000, "nothing was copied"
    assert second[1].nbytes == 200_000
    line.close()
    assert torch.frombuffer(second[1], dtype=torch.float32)[0] == 2.0, "who reads it has it as long as it wants"


def test_lent_memory_that_nobody_holds_any_more_is_gone_at_the_reader_too(listener):
    lent = LentMemory(available=True)
    before, line = mapped(), line_to(listener, lent=lent)
    for round_number in range(20):
        vector = lent.empty(1 << 20, torch.uint8).fill_(round_number)
        assert line.send([b"head", memoryview(vector.numpy())])
        ((_, body),) = taken(listener)
        assert body == bytes([round_number]) * (1 << 20)
        del vector, body
    assert line.send([b"no body"])
    assert taken(listener) == [[b"no body"]]
    assert mapped() - before == {}
    line.close()


def test_an_idle_line_tells_its_reader_what_is_gone(listener):
    lent = LentMemory(available=True)
    before, line, vector = mapped(), line_to(listener, lent=lent), lent.empty(1 << 20, torch.uint8)
    assert line.send([b"head", memoryview(vector.numpy())])
    assert len(taken(listener)) == 1
    line.tend(0.0)
    assert taken(listener) == []
    assert list((mapped() - before).values()) == [2], "once at each end"
    del vector
    line.tend(0.0)
    assert taken(listener) == [], "nobody hears of it"
    assert mapped() - before == {}
    line.tend(0.0)
    assert line.send([b"after"])
    assert taken(listener) == [[b"after"]]
    line.close()


def full_socket(line):
    """Fill the socket of `line` with messages, which its reader does not take; how many."""
    count = 0
    while line.send([b"x" * INLINE_BYTES]):
        count += 1
    assert line.watch()[1]
    return count


def test_lent_memory_that_could_not_be_told_of_is_told_of_when_there_is_room(listener, monkeypatch):
    monkeypatch.setitem(UNTAKEN, Lane.BULK, 1 << 30)  # so that the socket is full before the reader's patience ends
    before, lent = mapped(), LentMemory(available=True)
    line, vector = line_to(listener, lent=lent), lent.empty(1 << 20, torch.uint8).fill_(5)
    count = full_socket(line)
    assert not line.send([b"head", memoryview(vector.numpy())])
    assert len(taken(listener, most=1 << 30)) == count
    assert line.send([b"head", memoryview(vector.numpy())])
    assert taken(listener) == [[b"head", bytes([5]) * (1 << 20)]]
    count = full_socket(line)
    del vector
    line.tend(0.0)
    assert list((mapped() - before).values()) == [1], "the reader's"
    assert len(taken(listener, most=1 << 30)) == count
    line.tend(0.0)
    assert taken(listener) == []
    assert mapped() - before == {}
    line.close()


def test_an_endpoints_own_vectors_travel_uncopied_to_peers_of_this_machine():
    with contextlib.ExitStack() as stack:
        a, b = (stack.enter_context(contextlib.closing(endpoint(name))) for name in "ab")
        a.connect({"b": b.address})
        b.connect({"a": a.address})
        vector = a.empty(100_000, torch.float32).fill_(1.0)
        a.send("b", Lane.BULK, Note(), [vector[5:]])
        (delivery,) = received(b, a, 1)
        vector.fill_(3.0)
        assert delivery.tensors[0].tolist() == [3.0] * 99_995
        assert a.empty(10, torch.float64).dtype == torch.float64


def test_small_messages_come_in_order_with_large_ones(listener):
    line = line_to(listener)
    frames = [[b"%d" % number, bytes(number % 3 * 40_000)] for number in range(7)]
    for each in frames:
        line.send(each)
    assert taken(listener) == frames
    line.close()


def test_what_was_sent_before_the_sender_died_arrives(listener):
    line = line_to(listener)
    line.send([b"last words", bytes(100_000)])
    line.close()
    assert taken(listener) == [[b"last words", bytes(100_000)]]
    assert taken(listener) == []


def test_a_line_whose_reader_is_gone_takes_nothing_more(listener):
    line = line_to(listener)
    listener.close()
    assert not line.send([b"x"])
    assert line.broken
    assert not line.takes()
    line.close()


HELLO = MAGIC + TOKEN + b"bulk"


def head(slot, place, inline, frames, sizes=(), gone=()):
    """A head in the format of channel.py, whether or not it makes sense."""
    fixed = struct.pack("<IQHHH", slot, place, inline, frames, len(gone))
    return fixed + struct.pack(f"<{len(gone)}I{len(sizes)}Q", *gone, *sizes)


@pytest.mark.parametrize(
    ("datagrams", "cause"),
    [
        ([b"garbage"], DropCause.WRONG_TOKEN),
        ([MAGIC + bytes(16) + b"bulk"], DropCause.WRONG_TOKEN),
        ([MAGIC + TOKEN + b"express"], DropCause.MALFORMED),
        ([MAGIC + TOKEN + b"\xff"], DropCause.MALFORMED),
        ([HELLO, b"short"], DropCause.MALFORMED),
        ([HELLO, head(0, 1 << 16, 0, 60_000)], DropCause.MALFORMED),
        ([HELLO, head(0, 1 << 16, 2, 1, [0])], DropCause.MALFORMED),
        ([HELLO, head(0, 1 << 16, 1, 1, [5]) + b"four"], DropCause.WRONG_SIZE),
        ([HELLO, head(0, 1 << 16, 0, 1, [5])], DropCause.MALFORMED),
        ([HELLO, head((1 << 32) - 1, 1 << 16, 0, 1, [5])], DropCause.WRONG_SIZE),
        ([HELLO, head(7, 0, 1, 1, [1]) + b"x"], DropCause.WRONG_SIZE),
        ([HELLO, head(LENT | 3, 0, 0, 1, [5])], DropCause.WRONG_SIZE),
        ([HELLO, head(LENT | 3, 0, 0, 2, [5, 5], gone=[1, 2])], DropCause.WRONG_SIZE),
    ],
)
def test_who_says_what_no_peer_says_is_hung_up_on(listener, dropped, datagrams, cause):
    good = line_to(listener)
    stranger = raw(listener, *datagrams)
    assert taken(listener) == []
    assert dropped == {cause: 1}
    stranger.settimeout(DEADLINE_S)
    assert stranger.recv(10) == b""
    good.send([b"still here"])
    assert taken(listener) == [[b"still here"]]
    stranger.close()
    good.close()


def test_another_account_is_not_heard_whatever_it_knows(listener, dropped, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000_000)  # the kernel tells of a process of another account
    stranger = raw(listener, HELLO)
    monkeypatch.undo()
    stranger.settimeout(DEADLINE_S)
    with contextlib.suppress(ConnectionError):
        assert stranger.recv(10) == b""
    assert taken(listener) == []
    assert dropped == {DropCause.WRONG_TOKEN: 1}
    good = line_to(listener)
    good.send([b"still here"])
    assert taken(listener) == [[b"still here"]]
    stranger.close()
    good.close()


def test_a_segment_that_could_shrink_is_refused(listener, dropped):
    stranger = raw(listener, HELLO)
    descriptor = os.memfd_create("trap")
    os.ftruncate(descriptor, 16 << 20)
    message = head(0, 1 << 16, 0, 1, [5])
    before = open_files()
    socket.send_fds(stranger, [message], [descriptor])
    assert taken(listener) == []
    assert dropped == {DropCause.MALFORMED: 1}
    assert open_files() == before - 1  # the line's own: none that came is left open
    stranger.close()
    os.close(descriptor)


@pytest.mark.parametrize(("number", "sealed"), [(3, False), (MOST_LENT, True)])
def test_lent_memory_that_could_shrink_or_has_no_number_is_refused(listener, dropped, number, sealed):
    stranger = raw(listener, HELLO)
    descriptor = os.memfd_create("trap", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 1 << 16)
    if sealed:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    socket.send_fds(stranger, [head(LENT | number, 0, 0, 1, [5])], [descriptor])
    assert taken(listener) == []
    assert dropped == {DropCause.MALFORMED: 1}
    stranger.close()
    os.close(descriptor)


@pytest.mark.parametrize("answer", [b"abc", struct.pack("<I", 100), b""])
def test_a_reader_that_lies_about_what_it_took_is_given_up(answer):
    name = f"\0test/{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(name)
        listening.listen()
        line = OutgoingChannel.connect(name, TOKEN, Lane.BULK, NOTHING_LENT)
        reader, _ = listening.accept()
        for _ in range(UNTAKEN[Lane.BULK]):
            line.send([b"x"])
        if answer:
            reader.send(answer)
        else:
            reader.close()
        assert not line.takes()
        assert line.broken
        line.close()
        reader.close()


def test_lines_that_say_nothing_do_not_pile_up(listener):
    before = open_files()
    silent = [raw(listener) for _ in range(MOST_UNKNOWN + 20)]
    assert open_files() == before + len(silent) + MOST_UNKNOWN, "the listener has an end of the last ones only"
    assert [one.recv(10) for one in silent[:20]] == [b""] * 20
    good = line_to(listener)
    good.send([b"x"])
    assert taken(listener) == [[b"x"]]
    for one in (*silent, good):
        one.close()
    listener.look()
    assert taken(listener) == []
    assert open_files() == before


def test_without_a_listener_there_is_no_line():
    assert OutgoingChannel.connect(channel_name("127.0.0.1", 1, 2), TOKEN, Lane.BULK, NOTHING_LENT) is None


def test_a_taken_address_leaves_the_endpoint_to_tcp(listener):
    assert listen(f"\0test/{os.getpid()}", TOKEN, Counter(), 1 << 30) is None


def test_a_system_without_room_is_tried_again_and_nothing_is_lost(listener):
    line = line_to(listener, Lane.PIPELINE)
    with socket_of(line) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    found, sent, refused = [], 0, 0
    while len(found) < 50:
        if sent < 50 and line.takes() and line.send([b"%d" % sent, bytes(3000), bytes(100_000)][: 2 + sent % 2]):
            sent += 1
        else:
            refused += line.watch()[1]
            found += taken(listener, Lane.PIPELINE)
    assert refused
    assert [int(frames[0]) for frames in found] == list(range(50))
    line.close()


def test_a_message_for_which_there_was_no_room_goes_on_by_itself(channels):
    """Nobody sends after it: that the socket is writable again has to be enough."""
    a, b = endpoint("a"), endpoint("b")
    try:
        a.connect({"b": b.address})
        b.connect({"a": a.address})
        for channel in channels:
            with socket_of(channel) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        for number in range(7):
            a.send("b", Lane.BULK, Note(number=number), [torch.zeros(1)] * 800)
        assert [delivery.message.number for delivery in received(b, a, 7)] == list(range(7))
    finally:
        a.close()
        b.close()


@pytest.mark.parametrize("tensors", [1100, 8192])
def test_a_message_of_many_small_tensors_arrives(tensors):
    a, b = endpoint("a"), endpoint("b")
    try:
        a.connect({"b": b.address})
        b.connect({"a": a.address})
        a.send("b", Lane.BULK, Note(number=1), [torch.tensor([1.0])] * tensors)
        a.send("b", Lane.BULK, Note(number=2))
        first, second = received(b, a, 2)
        assert len(first.tensors) == tensors
        assert all(tensor.item() == 1.0 for tensor in first.tensors)
        assert second.message.number == 2
    finally:
        a.close()
        b.close()


def test_busy_lines_are_served_in_turn(listener):
    lines = [line_to(listener) for _ in range(5)]
    served = Counter()
    for _ in range(40):
        for index, line in enumerate(lines):
            while line.takes():
                line.send([b"%d" % index])
        listener.look()
        served.update(bytes(frames[0]) for frames in listener.take(Lane.BULK, 8))
    assert max(served.values()) - min(served.values()) <= 2
    for line in lines:
        line.close()


def test_who_minds_no_credit_is_hung_up_on(listener, dropped, monkeypatch):
    monkeypatch.setattr(IncomingChannel, "give_back", lambda channel: None)
    message = head((1 << 32) - 1, 0, 1, 1, [1]) + b"x"
    stranger = raw(listener, HELLO, *[message] * 12)
    listener.look()
    assert len(taken(listener)) == UNTAKEN[Lane.BULK]
    assert dropped == {DropCause.MALFORMED: 1}
    stranger.close()


def test_many_who_called_before_anybody_looked_are_all_admitted(listener):
    name = f"\0test/{os.getpid()}"
    lines = [OutgoingChannel.connect(name, TOKEN, Lane.BULK, NOTHING_LENT) for _ in range(MOST_UNKNOWN + 40)]
    assert all(line is not None and line.send([b"x"]) for line in lines)
    assert len(taken(listener)) == len(lines)
    for line in lines:
        line.close()


def test_a_line_that_breaks_is_replaced_by_tcp(channels):
    a, b = endpoint("a"), endpoint("b")
    try:
        a.connect({"b": b.address})
        b.connect({"a": a.address})
        a.send("b", Lane.BULK, Note(number=1), [torch.ones(50_000)])
        received(b, a, 1)
        for channel in channels:
            with socket_of(channel) as connection:
                connection.shutdown(socket.SHUT_RDWR)
        a.send("b", Lane.BULK, Note(number=2), [torch.ones(50_000)])
        (delivery,) = received(b, a, 1)
        assert delivery.message.number == 2
        assert not shared(delivery.tensors[0])
    finally:
        a.close()
        b.close()


def test_large_messages_one_after_another_take_little_memory(listener):
    before, line = mapped(), line_to(listener, Lane.PIPELINE)
    body = bytes(9 << 20)
    for _ in range(20):
        assert line.takes()
        assert line.send([b"head", body])
        listener.look()
        for frames in listener.take(Lane.PIPELINE, 1):
            assert frames[1].nbytes == len(body)
        del frames
    assert sum(n_bytes for _, n_bytes in mapped() - before) <= 3 * 16 << 20
    line.close()


def test_closing_with_something_unread_does_not_spin(monkeypatch):
    connect = zmq_endpoint.connect_lane

    def connected(peer, address, lane, *given):
        return _Never() if (peer, lane) == ("c", Lane.BULK) else connect(peer, address, lane, *given)

    monkeypatch.setattr(zmq_endpoint, "connect_lane", connected)
    a, b = endpoint("a"), endpoint("b")
    a.connect({"b": b.address})
    b.connect({"a": a.address, "c": a.address})
    a.send("b", Lane.BULK, Note())
    b.send("c", Lane.BULK, Note())
    before_s = time.thread_time()
    b.close()
    assert time.thread_time() - before_s < 0.5
    a.close()


class _Never:
    """A lane that takes nothing."""

    broken = False

    def __init__(self):
        self._silent, self._other_end = socket.socketpair()

    def takes(self):
        return False

    def watch(self):
        return self._silent.fileno(), False

    def tend(self, now_s):
        pass

    def close(self, linger_ms):
        self._silent.close()
        self._other_end.close()
