"""What the endpoint has no room for waits, in order, and one peer's jam holds back nobody else."""

import torch

from ring_allreduce.errors import PeerStalled
from ring_allreduce.transport.outbox import Outbox
from tests.unit.ring_allreduce.fleet import header


class NarrowEndpoint:
    def __init__(self, room):
        self.room = room
        self.sent = []

    def send(self, peer, lane, message, tensors):
        if not self.room[peer]:
            raise PeerStalled(peer, lane.value, 0)
        self.room[peer] -= 1
        self.sent.append((peer, message.block, tensors[0].item()))


def test_messages_wait_for_room_in_order():
    endpoint = NarrowEndpoint({"a": 1, "b": 9})
    outbox = Outbox(endpoint)
    for block in (1, 2, 3):
        outbox.put("a", header(block=block), [torch.tensor([float(block)])])
    outbox.put("b", header(block=1, round=2), [torch.zeros(1)])
    outbox.pump()
    assert endpoint.sent == [("a", 1, 1.0), ("b", 1, 0.0)]
    assert (outbox.waiting("r", 1), outbox.waiting("r", 2)) == (2, 0)
    endpoint.room["a"] = 9
    outbox.pump()
    assert endpoint.sent[2:] == [("a", 2, 2.0), ("a", 3, 3.0)]


def test_what_is_given_up_is_never_sent():
    endpoint = NarrowEndpoint({"a": 0})
    outbox = Outbox(endpoint)
    outbox.put("a", header(), [torch.zeros(1)])
    outbox.pump()
    outbox.clear()
    endpoint.room["a"] = 1
    outbox.pump()
    assert endpoint.sent == []
