"""The ZeroMQ endpoint on real sockets: tensors between processes, garbage, stalls, waking, emulated links."""

import multiprocessing
import threading
import time

import pytest
import torch
import zmq

from ring_allreduce.errors import InvalidInput, MessageTooLarge, PeerStalled, TransportError, UnknownPeer
from ring_allreduce.transport import (
    Codec,
    DropCause,
    Lane,
    LinkShape,
    Message,
    PeerAddress,
    TransportLimits,
    ZmqEndpoint,
)
from ring_allreduce.transport.envelope import DTYPES
from ring_allreduce.transport.security.doorkeeper import present_token

pytestmark = pytest.mark.timeout(60)

TOKEN = b"0123456789abcdef"
DEADLINE_S = 20.0


class Note(Message, frozen=True, kw_only=True, tag="note"):
    number: int = 0


class Stranger(Message, frozen=True, kw_only=True, tag="stranger"):
    pass


CODEC = Codec([Note])


def endpoint(name, **options):
    return ZmqEndpoint(name, **{"codec": CODEC, "token": TOKEN, **options})


@pytest.fixture(params=[True, False], ids=["shared-memory", "tcp"])
def pair(request):
    a, b = (endpoint(name, shared_memory=request.param) for name in "ab")
    a.connect({"b": b.address, "a": a.address})
    b.connect({"a": a.address})
    yield a, b
    a.close()
    b.close()


def receive(receiver, count, sender=None):
    """Poll until `count` messages have arrived; `sender` is polled too, so that what it holds goes on."""
    deliveries, end = [], time.monotonic() + DEADLINE_S
    while len(deliveries) < count:
        assert time.monotonic() < end, f"only {len(deliveries)} of {count} arrived"
        if sender:
            sender.poll(0.0)
        deliveries += receiver.poll(0.05)
    return deliveries


def samples():
    generator = torch.Generator().manual_seed(3)
    shapes = [(), (0,), (3,), (2, 0, 5), (100, 100)]
    return [torch.randint(0, 2, shape, generator=generator).to(dtype) for dtype in DTYPES.values() for shape in shapes]


def echo(name, back_to, pipe):
    torch.set_num_threads(1)
    here = endpoint(name)
    here.connect(back_to)
    pipe.send(here.address)
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        for delivery in here.poll(0.5):
            if delivery.message.number < 0:
                here.close()
                return
            here.send(delivery.sender, Lane.PIPELINE, delivery.message, delivery.tensors)


def test_every_dtype_and_shape_comes_back_from_another_process():
    a = endpoint("a")
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=echo, args=("b", {"a": a.address}, theirs), daemon=True)
    process.start()
    try:
        a.connect({"b": ours.recv()})
        sent = samples()
        a.send("b", Lane.BULK, Note(number=7), sent)
        (delivery,) = receive(a, 1)
        assert (delivery.sender, delivery.message) == ("b", Note(number=7))
        for tensor, back in zip(sent, delivery.tensors, strict=True):
            assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
            assert torch.equal(back, tensor)
            back.fill_(0)
        a.send("b", Lane.PIPELINE, Note(number=-1))
        process.join(DEADLINE_S)
        assert process.exitcode == 0
    finally:
        process.kill()
        a.close()


def test_lanes_keep_their_order_and_pipeline_comes_first(pair):
    a, b = pair
    for number in range(40):
        a.send("b", Lane.BULK, Note(number=number), [torch.full((5000,), number)])
        a.send("b", Lane.PIPELINE, Note(number=1000 + number))
    deliveries = receive(b, 80, a)
    numbers = [delivery.message.number for delivery in deliveries]
    assert [n for n in numbers if n < 1000] == list(range(40))
    assert [n for n in numbers if n >= 1000] == list(range(1000, 1040))
    bodies = [delivery for delivery in deliveries if delivery.tensors]
    assert all((body.tensors[0] == body.message.number).all() for body in bodies)
    assert a.stats.sent["b", Lane.BULK] == b.stats.received["a", Lane.BULK]


@pytest.fixture
def raw_socket():
    """Makes bare sockets that show the token, as a peer that sends what it likes."""
    context = zmq.Context()

    def connect(address: PeerAddress):
        dealer = context.socket(zmq.DEALER)
        present_token(dealer, TOKEN)
        dealer.connect(f"tcp://{address.host}:{address.pipeline_port}")
        return dealer

    yield connect
    context.destroy(linger=0)


def test_garbage_is_dropped_and_counted_and_the_good_still_arrives(pair, raw_socket):
    a, b = pair
    strangers = [
        endpoint("x"),
        endpoint("a", codec=Codec([Stranger])),
    ]
    for stranger, message in zip(strangers, [Note(), Stranger()], strict=True):
        stranger.connect({"b": b.address})
        stranger.send("b", Lane.PIPELINE, message)
    dealer = raw_socket(b.address)
    for frames in ([b""], [b"garbage"], [TOKEN], [TOKEN + b"\xc1"], [b"a", b"b", b"c"], [TOKEN + b"\x90", b""]):
        dealer.send_multipart(frames)
    expected = {
        DropCause.WRONG_TOKEN: 3,
        DropCause.MALFORMED: 3,
        DropCause.UNKNOWN_SENDER: 1,
        DropCause.UNKNOWN_KIND: 1,
    }
    end = time.monotonic() + DEADLINE_S
    while b.stats.dropped != expected and time.monotonic() < end:
        assert b.poll(0.05) == []
    assert b.stats.dropped == expected
    a.send("b", Lane.PIPELINE, Note(number=1))
    assert [delivery.message.number for delivery in receive(b, 1)] == [1]
    for stranger in strangers:
        stranger.close()


def test_a_message_beyond_the_limit_has_no_effect(raw_socket):
    a, b = (endpoint(name, limits=TransportLimits(max_message_bytes=1000)) for name in "ab")
    a.connect({"b": b.address})
    b.connect({"a": a.address})
    raw_socket(b.address).send_multipart([TOKEN, bytes(900), bytes(900)])
    with pytest.raises(MessageTooLarge):
        a.send("b", Lane.BULK, Note(), [torch.zeros(1000)])
    a.send("b", Lane.BULK, Note(number=4))
    assert [delivery.message.number for delivery in receive(b, 1)] == [4]
    end = time.monotonic() + DEADLINE_S
    while not b.stats.dropped and time.monotonic() < end:
        assert b.poll(0.05) == []
    assert b.stats.dropped == {DropCause.TOO_LARGE: 1}
    a.close()
    b.close()


def test_a_frame_beyond_the_limit_ends_its_connection_before_it_is_held():
    tcp = {"shared_memory": False}
    a, b = endpoint("a", **tcp), endpoint("b", **tcp, limits=TransportLimits(max_message_bytes=1000))
    a.connect({"b": b.address})
    b.connect({"a": a.address})
    a.send("b", Lane.BULK, Note(), [torch.zeros(100_000)])
    end = time.monotonic() + DEADLINE_S
    while not b.poll(0.05):
        # Lost, while the connection is down, until zmq has made a new one.
        assert time.monotonic() < end
        a.send("b", Lane.BULK, Note(number=4))
    # It came first, on the same connection: it was never a message.
    assert not b.stats.dropped
    a.close()
    b.close()


def test_what_waits_unread_at_the_receiver_is_few_messages():
    a, b = endpoint("a", limits=TransportLimits(queue_messages=4, linger_s=0.0)), endpoint("b")
    a.connect({"b": b.address})
    body, sent, full = torch.ones(1 << 18), 0, False
    while not full and sent < 200:
        try:
            a.send("b", Lane.BULK, Note(number=sent), [body])
            sent += 1
        except PeerStalled:
            started = time.monotonic()
            a.poll(0.5)
            full = time.monotonic() - started >= 0.5
    # 4 here, 4 in zmq, 8 over there, and what the kernel's buffers take: some 10 of 1 MiB.
    assert sent < 100
    a.close()
    b.close()


def test_a_delivery_says_in_which_epoch_it_was_sent(pair):
    a, b = pair
    b.epoch = 2
    for epoch in (1, 3):
        a.epoch = epoch
        a.send("b", Lane.PIPELINE, Note(number=epoch))
    assert [(each.epoch, each.message.number) for each in receive(b, 2)] == [(1, 1), (3, 3)]


def test_a_peer_that_takes_nothing_stalls_the_sender_by_name_and_poll_tells_when_it_goes_on():
    limits = TransportLimits(queue_messages=8, linger_s=0.1)
    a, b = endpoint("a", limits=limits), endpoint("b")
    a.connect({"b": b.address})
    b.connect({"a": a.address})
    body = torch.ones(1 << 18)
    sent, stalled = 0, None
    while stalled is None:
        try:
            a.send("b", Lane.BULK, Note(number=sent), [body])
            sent += 1
        except PeerStalled as error:
            stalled = error
    assert stalled.peer == "b"
    assert 8 <= sent < 1000
    reader = threading.Thread(target=receive, args=(b, sent))
    reader.start()
    started = time.monotonic()
    assert a.poll(DEADLINE_S) == []
    assert time.monotonic() - started < DEADLINE_S
    a.send("b", Lane.BULK, Note(number=sent))
    while reader.is_alive():
        a.poll(0.05)
    reader.join()
    a.close()
    b.close()


def test_a_peer_that_is_not_there_yet_gets_its_messages_when_it_comes():
    early, late = endpoint("early"), endpoint("late")
    address = late.address
    early.connect({"late": address})
    early.send("late", Lane.PIPELINE, Note(number=9))
    late.connect({"early": early.address})
    assert [delivery.message.number for delivery in receive(late, 1)] == [9]
    early.close()
    late.close()


def test_a_changed_address_replaces_the_old_one(pair):
    a, b = pair
    other = endpoint("b")
    other.connect({"a": a.address})
    a.connect({"b": other.address})
    a.send("b", Lane.BULK, Note(number=6))
    assert [delivery.message.number for delivery in receive(other, 1)] == [6]
    assert b.poll(0.0) == []
    other.close()


def test_wake_ends_a_poll_from_another_thread(pair):
    a, _ = pair
    timer = threading.Timer(0.05, a.wake)
    timer.start()
    started = time.monotonic()
    assert a.poll(DEADLINE_S) == []
    assert time.monotonic() - started < DEADLINE_S / 2
    timer.join()
    for _ in range(100_000):
        a.wake()
    assert a.poll(0.0) == []


def test_poll_waits_as_long_as_it_was_told(pair):
    a, _ = pair
    started = time.monotonic()
    assert a.poll(0.1) == []
    assert time.monotonic() - started >= 0.1


def test_an_emulated_link_delays_and_lets_pipeline_overtake_bulk():
    a = endpoint("a", links={"b": LinkShape(bytes_per_s=1e6, latency_s=0.05)})
    b = endpoint("b")
    a.connect({"b": b.address})
    b.connect({"a": a.address})
    started = time.monotonic()
    for number in range(10):
        a.send("b", Lane.BULK, Note(number=number), [torch.zeros(20_000, dtype=torch.uint8)])
    a.send("b", Lane.PIPELINE, Note(number=100))
    numbers = [delivery.message.number for delivery in receive(b, 11, a)]
    # Ten chunks of 20 ms and one latency; nothing can be faster.
    assert time.monotonic() - started >= 0.25
    assert numbers.index(100) <= 1
    assert [n for n in numbers if n < 100] == list(range(10))
    a.close()
    b.close()


def test_closing_sends_what_is_queued_and_is_idempotent():
    a, b = endpoint("a"), endpoint("b")
    a.connect({"b": b.address})
    b.connect({"a": a.address})
    for number in range(12):
        a.send("b", Lane.BULK, Note(number=number), [torch.ones(1000)])
    closer = threading.Thread(target=a.close)
    closer.start()
    assert [delivery.message.number for delivery in receive(b, 12)] == list(range(12))
    closer.join()
    a.close()
    a.wake()
    b.close()


def test_closing_towards_a_peer_that_is_gone_is_bounded():
    a, b = endpoint("a", limits=TransportLimits(linger_s=0.2)), endpoint("b")
    a.connect({"b": b.address})
    b.close()
    for _ in range(50):
        a.send("b", Lane.BULK, Note(), [torch.ones(1000)])
    started = time.monotonic()
    a.close()
    assert time.monotonic() - started < 5.0


def test_refuses_impossible_arguments(pair):
    a, _ = pair
    with pytest.raises(UnknownPeer, match="'x'"):
        a.send("x", Lane.BULK, Note())
    with pytest.raises(InvalidInput):
        a.send("b", Lane.BULK, Stranger())
    for impossible in [PeerAddress("127.0.0.1", 0, 1), PeerAddress("bad host!!", 1, 1), PeerAddress("", 1, 1)]:
        with pytest.raises(InvalidInput, match="peer 'y' has no valid"):
            a.connect({"x": PeerAddress("127.0.0.1", 1, 1), "y": impossible})
    with pytest.raises(UnknownPeer, match="'x'"):  # nothing of it had an effect
        a.send("x", Lane.BULK, Note())
    with pytest.raises(InvalidInput):
        endpoint("z", token=b"short")
    with pytest.raises(TransportError, match="cannot listen"):
        endpoint("z", host="203.0.113.1")


def test_an_address_that_zmq_cannot_use_is_an_error_and_closing_still_ends(pair, monkeypatch):
    a, b = pair
    monkeypatch.setattr(PeerAddress, "require_usable", lambda self, peer: None)
    bad = PeerAddress("bad host!!", 1, 1)
    for peer in "yb":
        with pytest.raises(TransportError, match=f"cannot connect to peer '{peer}' at PeerAddress.*bad host"):
            a.connect({peer: bad})
    a.send("b", Lane.PIPELINE, Note(number=5))
    assert [delivery.message.number for delivery in receive(b, 1)] == [5], "the old address was kept"
    closer = threading.Thread(target=a.close, daemon=True)
    closer.start()
    closer.join(DEADLINE_S)
    assert not closer.is_alive()
