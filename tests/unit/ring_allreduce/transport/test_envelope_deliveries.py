"""Deliver, or drop and count: sender names and epochs are claims that are checked."""

import pytest
import torch

from ring_allreduce.transport.envelope import Envelope, open_delivery
from ring_allreduce.transport.message import Codec, Message
from ring_allreduce.transport.stats import DropCause, Lane, TransportStats


class Note(Message, frozen=True, kw_only=True, tag="note"):
    pass


ENVELOPE = Envelope(Codec([Note]), bytes(16), 4096)


def deliver(sender="a", epoch=3, spoil=False):
    parts, n_bytes = ENVELOPE.seal(sender, epoch, Note(), [torch.ones(2)])
    frames = [memoryview(bytearray(part)) for part in parts][: 1 if spoil else None]
    stats = TransportStats()
    return open_delivery(ENVELOPE, frames, {"a"}, Lane.BULK, stats), stats, n_bytes


@pytest.mark.parametrize("epoch", [0, 4])
def test_delivers_what_was_sent_in_any_epoch(epoch):
    delivery, stats, n_bytes = deliver(epoch=epoch)
    assert (delivery.sender, delivery.epoch, delivery.message) == ("a", epoch, Note())
    assert delivery.tensors[0].tolist() == [1.0, 1.0]
    assert stats.received["a", Lane.BULK].n_bytes == n_bytes
    assert not stats.dropped


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        ({"sender": "x"}, DropCause.UNKNOWN_SENDER),
        ({"spoil": True}, DropCause.WRONG_SIZE),
    ],
)
def test_drops_and_counts(arguments, cause):
    delivery, stats, _ = deliver(**arguments)
    assert delivery is None
    assert stats.dropped == {cause: 1}
    assert not stats.received
