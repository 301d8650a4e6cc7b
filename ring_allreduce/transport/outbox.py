"""Bulk messages that wait until the endpoint has room for them, each peer's in order. Decides nothing else."""

from collections import deque
from collections.abc import Sequence

from torch import Tensor

from ring_allreduce.errors import PeerStalled
from ring_allreduce.ring.messages import Chunk, HandedOn
from ring_allreduce.transport.endpoint import Endpoint
from ring_allreduce.transport.stats import Lane


class Outbox:
    """What one reducer has still to send."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._waiting: dict[str, deque[tuple[Chunk | HandedOn, Sequence[Tensor]]]] = {}

    def put(self, peer: str, message: Chunk | HandedOn, tensors: Sequence[Tensor]) -> None:
        """Queue a message; nobody may write to `tensors` any more."""
        self._waiting.setdefault(peer, deque()).append((message, tensors))

    def pump(self) -> None:
        """Send what the endpoint has room for."""
        for peer, waiting in self._waiting.items():
            while waiting:
                try:
                    self._endpoint.send(peer, Lane.BULK, *waiting[0])
                except PeerStalled:
                    break
                waiting.popleft()

    def clear(self) -> None:
        """Give up what has not been sent."""
        self._waiting.clear()

    def waiting(self, ring: str, round: int) -> int:  # noqa: A002 - our word
        """How many messages of one ring and round have not been sent."""
        messages = (message for queue in self._waiting.values() for message, _ in queue)
        return sum((message.ring, message.round) == (ring, round) for message in messages)
