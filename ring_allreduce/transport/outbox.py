"""A queue in front of an endpoint, for bulk messages that have to wait until their peer has room.

In: messages with tensors, for any peer. Out: the same messages in the endpoint's bulk lane, each peer's in order. A
peer that has no room delays nobody else. The queue itself has no bound: who puts messages in knows how many there are.

What a peer has been sent takes memory until it is through with it, also where it lies in memory that both share. Where
`most_bytes` is set, a peer is sent no more than that before it has said what it has got, and many peers share
`most_in_all`. Tensors may be made as late as that.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from ring_allreduce.errors import PeerStalled
from ring_allreduce.transport.endpoint import Endpoint
from ring_allreduce.transport.message import Message
from ring_allreduce.transport.stats import Lane

Tensors = Sequence[Tensor] | Callable[[], Sequence[Tensor]]
"""Tensors, or what makes them when there is room for them."""


class Outbox:
    """Bulk messages that have not been handed to the endpoint yet, oldest first for each peer."""

    def __init__(self, endpoint: Endpoint, most_bytes: int | None = None, most_in_all: int | None = None) -> None:
        """
        Arguments:
            endpoint: sends the messages; it must know every peer that is named in put() when flush() is called.
            most_bytes: the bytes of tensors on their way to one peer, beyond which it is sent nothing before it has got
                some, as got() is told; None for no bound.
            most_in_all: the same for all peers together, each of which has an equal part. One message may be on its way
                to a peer in any case.
        """
        self._endpoint = endpoint
        self._most_bytes, self._most_in_all = most_bytes, most_in_all
        self._queues: dict[str, deque[tuple[Message, Tensors]]] = {}
        self._under_way: dict[str, deque[int]] = {}
        """By peer: the bytes of each message that it has been sent and has not got, oldest first."""
        self._got: dict[str, int] = {}

    def put(self, peer: str, message: Message, tensors: Tensors = ()) -> None:
        """Queue a message. Nobody may write to `tensors` any more, as with Endpoint.send. A function that makes them is
        called by flush(), once."""
        self._queues.setdefault(peer, deque()).append((message, tensors))

    def flush(self, most_queued: int | None = None) -> int:
        """Send what the endpoint has room for, and return how many messages that were. Never blocks.

        `most_queued`: so many messages for one peer may wait at the endpoint, what others have sent it included; None:
        as many as the endpoint takes.

        Raises what Endpoint.send raises, except PeerStalled: the message then stays at the head of its queue. Raises
        what a function raises that makes tensors.
        """
        sent = 0
        for peer, queue in self._queues.items():
            while queue and not self._full(peer):
                if most_queued is not None and self._endpoint.queued(peer, Lane.BULK) >= most_queued:
                    break
                message, waiting = queue[0]
                tensors = waiting() if callable(waiting) else waiting
                try:
                    self._endpoint.send(peer, Lane.BULK, message, tensors)
                except PeerStalled:
                    queue[0] = message, tensors
                    break
                queue.popleft()
                if self._most_bytes is not None:
                    self._under_way.setdefault(peer, deque()).append(sum(tensor.nbytes for tensor in tensors))
                sent += 1
        return sent

    def got(self, peer: str, messages: int) -> None:
        """A peer has got so many messages of this outbox in all, since the first or since it was forgotten. It may say
        more than it was sent."""
        under_way = self._under_way.get(peer)
        while under_way and self._got.get(peer, 0) < messages:
            under_way.popleft()
            self._got[peer] = self._got.get(peer, 0) + 1

    def forget(self, peer: str) -> None:
        """Drop what has not been sent to a peer, which counts from 0 again: another process has its name now."""
        for held in (self._queues, self._under_way, self._got):
            held.pop(peer, None)

    def _full(self, peer: str) -> bool:
        if self._most_bytes is None:
            return False
        most = self._most_bytes
        if self._most_in_all is not None:
            peers = sum(bool(queue) or bool(self._under_way.get(name)) for name, queue in self._queues.items())
            most = min(most, max(1, self._most_in_all // peers))
        return sum(self._under_way.get(peer, ())) >= most

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
