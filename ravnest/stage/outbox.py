"""Bulk messages that wait for room: state on its way, paced by what each peer's bounded queue takes.

Knows neither what it carries nor when to hurry; used by the driver (weights out) and the stages (checkpoints in).
"""

from collections import deque

from torch import Tensor

from ring_allreduce import PeerStalled
from ring_allreduce.transport import Endpoint, Lane, Message


class Outbox:
    """Messages in the bulk lane that wait for room at their peers, oldest first for each."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._waiting: dict[str, deque[tuple[Message, tuple[Tensor, ...]]]] = {}

    def put(self, peer: str, message: Message, *tensors: Tensor) -> None:
        self._waiting.setdefault(peer, deque()).append((message, tensors))

    def flush(self) -> int:
        """Send what the peers take now; returns how many messages went."""
        sent = 0
        for peer, queue in self._waiting.items():
            try:
                while queue:
                    message, tensors = queue[0]
                    self._endpoint.send(peer, Lane.BULK, message, tensors)
                    queue.popleft()
                    sent += 1
            except PeerStalled:
                continue
        return sent

    @property
    def empty(self) -> bool:
        return not any(self._waiting.values())
