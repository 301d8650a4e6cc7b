"""What the endpoint has no room for waits, in order, and a peer without room holds back nobody else."""

import torch

from ring_allreduce.transport import Codec, InProcessNetwork, Lane, Message, Outbox, TransportLimits


class Note(Message, frozen=True, kw_only=True, tag="note"):
    number: int


def outbox_to(*peers, queue_messages=2, most_bytes=None, most_in_all=None):
    """The outbox of an endpoint with `peers`, and theirs."""
    network = InProcessNetwork(limits=TransportLimits(queue_messages=queue_messages))
    sender, *others = (network.endpoint(name, Codec([Note])) for name in ("sender", *peers))
    network.connect_all()
    return Outbox(sender, most_bytes, most_in_all), *others


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


def test_no_more_messages_wait_at_the_endpoint_than_are_asked_for():
    outbox, peer = outbox_to("peer", queue_messages=8)
    for number in range(5):
        outbox.put("peer", Note(number=number))
    assert (outbox.flush(2), outbox.flush(2)) == (2, 0)
    peer.poll(0.0)
    assert outbox.flush() == 3


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


def test_all_peers_together_are_sent_no_more_than_so_many_bytes_each_an_equal_part():
    """A message has 8 bytes. The last peer has the room of those that need none any more."""
    peers = [f"p{number}" for number in range(4)]
    outbox, *others = outbox_to(*peers, queue_messages=100, most_bytes=64, most_in_all=64)
    for number in range(10):
        for peer in peers if number < 3 else peers[:1]:
            outbox.put(peer, Note(number=number), [torch.tensor([number])])
    assert outbox.flush() == 8
    assert [len(each.poll(0.0)) for each in others] == [2, 2, 2, 2]
    for peer in peers:
        outbox.got(peer, 2)
    assert outbox.flush() == 2 + 3
    for peer in peers[1:]:
        outbox.got(peer, 3)
    assert outbox.flush() == 6  # of 8, two are on their way


def test_one_message_is_on_its_way_to_each_peer_however_many_there_are():
    outbox, *others = outbox_to("a", "b", "c", queue_messages=100, most_bytes=64, most_in_all=8)
    for peer in "abc":
        for number in range(2):
            outbox.put(peer, Note(number=number), [torch.zeros(100)])
    assert outbox.flush() == 3
    assert [len(each.poll(0.0)) for each in others] == [1, 1, 1]


def test_tensors_are_made_once_and_only_when_there_is_room():
    outbox, peer = outbox_to("peer", queue_messages=2, most_bytes=8)
    made = []

    def make(number):
        made.append(number)
        return [torch.tensor([number])]

    for number in range(5):
        outbox.put("peer", Note(number=number), lambda number=number: make(number))
    assert made == []
    outbox.flush()
    assert made == [0]
    outbox.got("peer", 1)
    outbox.flush()
    assert made == [0, 1]
    outbox.got("peer", 2)
    outbox.flush()  # the endpoint's queue is full now: what was made waits
    outbox.flush()
    assert made == [0, 1, 2]
    seen = [each.tensors[0].item() for each in peer.poll(0.0)]
    for number in (3, 4, 5):
        outbox.flush()
        outbox.got("peer", number)
        outbox.flush()
        seen += [each.tensors[0].item() for each in peer.poll(0.0)]
    assert seen == made == list(range(5))
