"""What the endpoint has no room for waits, in order, and a peer without room holds back nobody else."""

import torch

from ring_allreduce.transport import Codec, InProcessNetwork, Lane, Message, Outbox, TransportLimits


class Note(Message, frozen=True, kw_only=True, tag="note"):
    number: int


def outbox_to(*peers, queue_messages=2, most_bytes=None):
    """The outbox of an endpoint with `peers`, and theirs."""
    network = InProcessNetwork(limits=TransportLimits(queue_messages=queue_messages))
    sender, *others = (network.endpoint(name, Codec([Note])) for name in ("sender", *peers))
    network.connect_all()
    return Outbox(sender, most_bytes), *others


def test_each_peer_is_sent_what_it_takes_in_order_and_none_waits_for_another():
    outbox, slow, quick = outbox_to("slow", "quick")
    for number in range(5):
        outbox.put("slow", Note(number=number), [torch.tensor([number])])
    outbox.put("quick", Note(number=9))
    assert outbox.flush() == 3
    assert outbox.flush() == 0
    assert [note.number for note in outbox.waiting] == [2, 3, 4]
    assert not outbox.empty
    assert [each.message.number for each in quick.poll(0.0)] == [9]
    seen = []
    for expected in (2, 1, 0):
        seen += [(each.message.number, each.tensors[0].item()) for each in slow.poll(0.0)]
        assert outbox.flush() == expected
    assert seen == [(number, number) for number in range(5)]
    assert outbox.empty


def test_messages_travel_in_the_bulk_lane():
    outbox, peer = outbox_to("peer")
    outbox.put("peer", Note(number=1))
    outbox.flush()
    assert (peer.inbox_length(Lane.BULK), peer.inbox_length(Lane.PIPELINE)) == (1, 0)


def test_what_is_dropped_is_never_sent():
    outbox, peer = outbox_to("peer", queue_messages=1)
    outbox.put("peer", Note(number=1))
    outbox.put("peer", Note(number=2))
    assert outbox.flush() == 1
    outbox.clear()
    assert outbox.empty
    peer.poll(0.0)
    assert outbox.flush() == 0
    assert peer.poll(0.0) == []


def test_a_peer_is_sent_no_more_than_so_many_bytes_before_it_has_got_some():
    outbox, slow, quick = outbox_to("slow", "quick", queue_messages=100, most_bytes=100)
    for number in range(6):
        for peer in ("slow", "quick"):
            outbox.put(peer, Note(number=number), [torch.zeros(15)])  # 60 bytes
    assert outbox.flush() == 4
    assert outbox.flush() == 0
    outbox.got("quick", 1)
    assert outbox.flush() == 1
    outbox.got("quick", 1)  # the same news again
    assert outbox.flush() == 0
    outbox.got("quick", 50)  # it may count what it does besides
    assert outbox.flush() == 2
    outbox.got("quick", 51)
    assert outbox.flush() == 1
    assert [each.message.number for each in quick.poll(0.0)] == [0, 1, 2, 3, 4, 5]
    assert [each.message.number for each in slow.poll(0.0)] == [0, 1]


def test_a_message_larger_than_the_bound_is_sent_alone():
    outbox, peer = outbox_to("peer", queue_messages=100, most_bytes=100)
    for number in range(2):
        outbox.put("peer", Note(number=number), [torch.zeros(1000)])
    assert outbox.flush() == 1
    outbox.got("peer", 1)
    assert outbox.flush() == 1
    assert len(peer.poll(0.0)) == 2


def test_a_peer_of_the_same_name_counts_from_the_beginning():
    outbox, peer = outbox_to("peer", queue_messages=100, most_bytes=10)
    outbox.put("peer", Note(number=1), [torch.zeros(10)])
    outbox.flush()
    outbox.got("peer", 1)
    outbox.put("peer", Note(number=2))
    outbox.forget("peer")
    assert outbox.empty
    for number in (3, 4):
        outbox.put("peer", Note(number=number), [torch.zeros(10)])
    assert outbox.flush() == 1
    outbox.got("peer", 1)
    assert outbox.flush() == 1
    assert [each.message.number for each in peer.poll(0.0)] == [1, 3, 4]
