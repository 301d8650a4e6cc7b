"""A queue in front of an endpoint, for bulk messages that have to wait until their peer has room.

In: messages with tensors, for any peer. Out: the same messages in the endpoint's bulk lane, each peer's in order. A
peer that has no room delays nobody else. The queue itself has no bound: who puts messages in knows how many there are.
"""

from collections import deque
from collections.abc import Iterator, Sequence

from torch import Tensor

from ring_allreduce.errors import PeerStalled
from ring_allreduce.transport.endpoint import Endpoint
from ring_allreduce.transport.message import Message
from ring_allreduce.transport.stats import Lane


class Outbox:
    """Bulk messages that have not been handed to the endpoint yet, oldest first for each peer."""

    def __init__(self, endpoint: Endpoint) -> None:
        """`endpoint`: sends the messages; it must know every peer that is named in put() when flush() is called."""
        self._endpoint = endpoint
        self._queues: dict[str, deque[tuple[Message, Sequence[Tensor]]]] = {}

    def put(self, peer: str, message: Message, tensors: Sequence[Tensor] = ()) -> None:
        """Queue a message. Nobody may write to `tensors` any more, as with Endpoint.send."""
        self._queues.setdefault(peer, deque()).append((message, tensors))

    def flush(self) -> int:
        """Send what the endpoint has room for, and return how many messages that were. Never blocks.

        Raises what Endpoint.send raises, except PeerStalled: the message then stays at the head of its queue.
        """
        sent = 0
        for peer, queue in self._queues.items():
            while queue:
                try:
                    self._endpoint.send(peer, Lane.BULK, *queue[0])
                except PeerStalled:
                    break
                queue.popleft()
                sent += 1
        return sent

    def clear(self) -> None:
        """Drop what has not been sent."""
        self._queues.clear()

    @property
    def waiting(self) -> Iterator[Message]:
        """Return the messages that have not been sent."""
        return (message for queue in self._queues.values() for message, _ in queue)

    @property
    def empty(self) -> bool:
        """Say whether everything has been sent or dropped."""
        return not any(self._queues.values())
