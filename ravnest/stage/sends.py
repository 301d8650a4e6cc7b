"""What a stage sends, from either of its threads: the sockets belong to one, and send for the other.

Decides the order only: what the other thread sent first leaves first. Knows no message.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from torch import Tensor

from ring_allreduce.transport import Endpoint, Lane, Message


class Sends:
    """One stage's. Belongs to the thread that makes it, which owns the endpoint; any other may call `send`."""

    def __init__(
        self,
        endpoint: Endpoint,
        on_sent: Callable[[Message, float], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_sent`: hears in the owning thread what has left, and when that began."""
        self._endpoint = endpoint
        self._on_sent = on_sent
        self._now = now
        self._owner = threading.get_ident()
        self._waiting: deque[tuple[str, Message, Sequence[Tensor]]] = deque()

    def send(self, peer: str, message: Message, tensors: Sequence[Tensor] = ()) -> None:
        """In the pipeline's lane. Raises what Endpoint.send does, from another thread later: in `flush`."""
        self._waiting.append((peer, message, tensors))
        if threading.get_ident() == self._owner:
            self.flush()
        else:
            self._endpoint.wake()

    def flush(self) -> None:
        """Send what waits; for the owning thread."""
        while self._waiting:
            peer, message, tensors = self._waiting.popleft()
            began_s = self._now()
            self._endpoint.send(peer, Lane.PIPELINE, message, tensors)
            self._on_sent(message, began_s)
