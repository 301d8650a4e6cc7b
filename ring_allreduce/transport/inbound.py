"""What an endpoint does with frames that arrived: deliver, or drop and count. Never raises for garbage."""

from collections.abc import Container, Sequence

from ring_allreduce.errors import InvalidMessage
from ring_allreduce.transport.endpoint import Delivery
from ring_allreduce.transport.envelope import Envelope
from ring_allreduce.transport.stats import DropCause, Lane, TransportStats


def open_delivery(
    envelope: Envelope,
    frames: Sequence[memoryview],
    peers: Container[str],
    epoch: int,
    lane: Lane,
    stats: TransportStats,
    proven: str | None = None,
) -> Delivery | None:
    """The delivery in `frames`, counted in `stats`; None, counted by cause, when it has to be dropped.

    A sender name is a claim: it has to be one of `peers`, and `proven`, the name that the connection's key stands for
    (None: without keys nothing is proven). Messages of an epoch before `epoch` have no effect.
    """
    try:
        opened = envelope.open(frames)
    except InvalidMessage as error:
        stats.dropped[DropCause(error.cause)] += 1
        return None
    if opened.sender not in peers:
        stats.dropped[DropCause.UNKNOWN_SENDER] += 1
        return None
    if proven is not None and opened.sender != proven:
        stats.dropped[DropCause.FALSE_SENDER] += 1
        return None
    if opened.epoch < epoch:
        stats.dropped[DropCause.OLDER_EPOCH] += 1
        return None
    stats.received[opened.sender, lane].add(opened.n_bytes)
    return Delivery(opened.sender, opened.epoch, opened.message, opened.tensors)


def still_wanted(delivery: Delivery, peers: Container[str], epoch: int, stats: TransportStats) -> bool:
    """Whether a delivery that was held back since it was opened may still have an effect; counted when not."""
    if delivery.sender not in peers:
        stats.dropped[DropCause.UNKNOWN_SENDER] += 1
        return False
    if delivery.epoch < epoch:
        stats.dropped[DropCause.OLDER_EPOCH] += 1
        return False
    return True
