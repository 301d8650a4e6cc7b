"""What came before it was called for: each once, of rounds that can have begun, from members, and only so much."""

import pytest
import torch

from ring_allreduce.group.group_ring import MESSAGE_BYTES, EarlyChunks, rounds_begun
from ring_allreduce.ring.messages import Chunk, HandedOn
from ring_allreduce.transport.endpoint import Delivery


def chunk(start=0, ring="r", number=2, sender="a"):
    header = Chunk(ring=ring, round=number, phase="reduce", block=0, start=start, stop=start + 4, weight=1.0)
    return Delivery(sender, 1, header, (torch.zeros(4),))


def keep(early, *deliveries, round_bytes=0):
    for delivery in deliveries:
        early.keep(delivery, delivery.message, range(2, 3), ("a", "b"), round_bytes)


def test_what_came_early_is_given_once_and_in_order():
    early = EarlyChunks("r")
    piece = HandedOn(ring="r", round=2, start=0, stop=4, total_weight=1.0)
    sent = [chunk(4), chunk(0), chunk(0, sender="b"), Delivery("a", 1, piece, (torch.zeros(4),))]
    keep(early, *sent)
    assert early.take() == sent
    assert early.take() == []
    assert not early.drops


@pytest.mark.parametrize(
    ("delivery", "reason"),
    [
        (chunk(0), "early, and there before"),
        (chunk(4, ring="x"), "early, of another ring"),
        (chunk(4, number=10**9), "of a round that nobody can have begun"),
        (chunk(4, number=1), "of a round that nobody can have begun"),
        (chunk(4, sender="z"), "early, from no member"),
    ],
    ids=str,
)
def test_what_cannot_be_is_dropped_and_counted(delivery, reason):
    early = EarlyChunks("r")
    keep(early, chunk(0), delivery)
    assert len(early.take()) == 1
    assert early.drops == {reason: 1}


def test_only_so_many_bytes_are_kept():
    early, each = EarlyChunks("r", least_bytes=2 * (MESSAGE_BYTES + 16)), MESSAGE_BYTES + 16
    keep(early, *(chunk(start) for start in range(5)))
    assert len(early.take()) == 2
    assert early.drops == {"early, and too much": 3}
    keep(early, chunk(9))
    assert len(early.take()) == 1, "what was taken makes room"
    keep(early, *(chunk(start) for start in range(5)), round_bytes=3 * each)
    assert len(early.take()) == 3, "as much as the round under way needs"


def test_others_are_one_round_ahead_at_most_and_of_a_newcomer_two():
    assert list(rounds_begun(4, newcomer=False)) == [5]
    assert list(rounds_begun(4, newcomer=True)) == [5, 6]
