"""The baseline of parallel rings: everyone sends its vector to one server, which sends the averages back.

As good as it can be on this transport: chunk by chunk, so that sending, adding and answering overlap.
"""

import time
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ring_allreduce import PeerStalled
from ring_allreduce.transport import Lane, Message, ZmqEndpoint

DEADLINE_S = 120.0


class Pushed(Message, frozen=True, kw_only=True, tag="experiment_pushed"):
    """Elements [start, start + len) of the sender's vector."""

    start: int


class Averaged(Message, frozen=True, kw_only=True, tag="experiment_averaged"):
    """The mean of the same elements."""

    start: int


Span = tuple[int, int]


def serve(endpoint: ZmqEndpoint, clients: Mapping[str, Span], chunks: Sequence[Span]) -> None:
    """Answer every chunk once all the clients whose span holds it have sent theirs, until all chunks are answered."""
    sums: dict[int, Tensor] = {}
    takers = {start: [name for name, (a, b) in clients.items() if a <= start and stop <= b] for start, stop in chunks}
    missing = {start: len(names) for start, names in takers.items()}
    waiting: list[tuple[str, int]] = []
    end_s = time.monotonic() + DEADLINE_S
    while any(missing.values()) or waiting:
        for delivery in endpoint.poll(0.1):
            assert isinstance(delivery.message, Pushed)
            start, (part,) = delivery.message.start, delivery.tensors
            sums[start] = sums[start].add_(part) if start in sums else part
            missing[start] -= 1
            if not missing[start]:
                sums[start].div_(len(takers[start]))
                waiting += [(taker, start) for taker in takers[start]]
        waiting = [(to, start) for to, start in waiting if not _sent(endpoint, to, Averaged(start=start), sums[start])]
        _check(end_s)


def push(endpoint: ZmqEndpoint, server: str, vector: Tensor, chunks: Sequence[Span], first: int) -> Tensor:
    """Send `vector`, whose first element is number `first` of the whole, in these chunks; the averages."""
    average = torch.empty_like(vector)
    to_send, missing = list(chunks), len(chunks)
    end_s = time.monotonic() + DEADLINE_S
    while missing:
        while to_send:
            start, stop = to_send[0]
            if not _sent(endpoint, server, Pushed(start=start), vector[start - first : stop - first]):
                break
            to_send.pop(0)
        for delivery in endpoint.poll(0.1):
            assert isinstance(delivery.message, Averaged)
            start, (part,) = delivery.message.start - first, delivery.tensors
            average[start : start + len(part)] = part
            missing -= 1
        _check(end_s)
    return average


def _sent(endpoint: ZmqEndpoint, to: str, message: Message, part: Tensor) -> bool:
    try:
        endpoint.send(to, Lane.BULK, message, [part])
    except PeerStalled:
        return False
    return True


def _check(end_s: float) -> None:
    if time.monotonic() > end_s:
        raise TimeoutError(f"the parameter server took more than {DEADLINE_S:g} s")
