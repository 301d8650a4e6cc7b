"""The in-process twin behaves as an endpoint does: lanes, peers, epochs, bounded queues, links, garbage."""

import pytest
import torch

from ring_allreduce.errors import InvalidInput, PeerStalled, UnknownPeer
from ring_allreduce.transport.emulation.links import LinkShape
from ring_allreduce.transport.endpoint import Endpoint, TransportLimits
from ring_allreduce.transport.in_process import InProcessNetwork
from ring_allreduce.transport.message import Codec, Message
from ring_allreduce.transport.stats import DropCause, Lane


class Note(Message, frozen=True, kw_only=True, tag="note"):
    number: int = 0


CODEC = Codec([Note])


def pair(**network):
    net = InProcessNetwork(**network)
    a, b = net.endpoint("a", CODEC), net.endpoint("b", CODEC)
    net.connect_all()
    return net, a, b


def numbers(endpoint: Endpoint):
    return [delivery.message.number for delivery in endpoint.poll(0.0)]


def test_delivers_pipeline_first_and_copies_at_send():
    _, a, b = pair()
    tensor = torch.ones(3)
    a.send("b", Lane.BULK, Note(number=1), [tensor])
    a.send("b", Lane.PIPELINE, Note(number=2))
    tensor.zero_()
    first, second = b.poll(0.0)
    assert (first.message, second.message) == (Note(number=2), Note(number=1))
    assert second.tensors[0].tolist() == [1.0, 1.0, 1.0]
    assert a.stats.sent["b", Lane.BULK].n_bytes == b.stats.received["a", Lane.BULK].n_bytes > 12


def test_a_link_delays_by_the_clock_that_was_given():
    clock = [0.0]
    net, a, b = pair(now=lambda: clock[0], links={("a", "b"): LinkShape(1e9, 2.0)})
    a.send("b", Lane.PIPELINE, Note(number=5))
    b.send("a", Lane.PIPELINE, Note(number=6))
    assert numbers(b) == []
    assert numbers(a) == [6]
    net.deliver_due()
    clock[0] = net.next_due_s()
    assert clock[0] == pytest.approx(2.0, abs=1e-6)
    assert numbers(b) == [5]
    assert net.next_due_s() is None


@pytest.mark.parametrize("links", [{}, {("a", "b"): LinkShape(1.0, 0.0)}], ids=["direct", "link"])
def test_a_full_queue_stalls_one_lane(links):
    _, a, _ = pair(limits=TransportLimits(queue_messages=2), links=links)
    a.send("b", Lane.BULK, Note())
    a.send("b", Lane.BULK, Note())
    with pytest.raises(PeerStalled, match="'b'") as caught:
        a.send("b", Lane.BULK, Note())
    assert caught.value.peer == "b"
    a.send("b", Lane.PIPELINE, Note())


def test_unknown_peers_and_strangers():
    net, a, b = pair()
    stranger = net.endpoint("x", CODEC)
    with pytest.raises(UnknownPeer):
        a.send("x", Lane.BULK, Note())
    stranger.connect({"b": b.address})
    stranger.send("b", Lane.BULK, Note())
    assert numbers(b) == []
    assert b.stats.dropped == {DropCause.UNKNOWN_SENDER: 1}
    with pytest.raises(InvalidInput):
        net.endpoint("a", CODEC)


def test_garbage_is_counted():
    _, _, b = pair()
    b.put(Lane.BULK, [])
    b.put(Lane.PIPELINE, [memoryview(b"garbage")])
    assert numbers(b) == []
    assert b.stats.dropped == {DropCause.WRONG_TOKEN: 2}


def test_what_is_sent_to_a_closed_endpoint_is_lost():
    net, a, b = pair()
    b.close()
    a.send("b", Lane.BULK, Note())
    assert net.find("b") is None
    assert numbers(a) == []


def test_connecting_skips_the_own_name_and_is_idempotent():
    net, a, _ = pair()
    net.connect_all()
    with pytest.raises(UnknownPeer):
        a.send("a", Lane.BULK, Note())
    a.wake()


def test_a_forgotten_peer_is_neither_heard_nor_reached_until_it_is_connected_again():
    _, a, b = pair()
    b.send("a", Lane.BULK, Note(number=1))
    a.disconnect(["b", "nobody"])
    a.disconnect(["b"])
    assert numbers(a) == []
    assert a.stats.dropped == {DropCause.UNKNOWN_SENDER: 1}
    with pytest.raises(UnknownPeer):
        a.send("b", Lane.BULK, Note(number=2))
    a.connect({"b": b.address})
    a.send("b", Lane.BULK, Note(number=3))
    assert numbers(b) == [3]
