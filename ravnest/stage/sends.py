"""The messages of one stage on their way out, in the pipeline's lane.

In: messages and their tensors, from any thread. Out: the same on the endpoint, sent by the thread that owns it.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from torch import Tensor

from ravnest.stage import messages as m
from ring_allreduce import PeerStalled
from ring_allreduce.transport import Endpoint, Lane, Message


class Sends:
    """Sends the messages of one stage. Any thread may call `send`; the one that calls `flush` owns the endpoint."""

    def __init__(
        self,
        endpoint: Endpoint,
        on_sent: Callable[[Message, float], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_sent`: is called in the owning thread with each message that was sent, and when its sending began."""
        self.endpoint = endpoint
        self._on_sent = on_sent
        self._now = now
        self._owner: int | None = None  # not who makes it: a stage is assembled beside the thread that turns it
        self._waiting: deque[tuple[str, Message, Sequence[Tensor]]] = deque()
        self._reports: deque[Message] = deque()  # what the driver did not take yet

    def send(self, peer: str, message: Message, tensors: Sequence[Tensor] = ()) -> None:
        """Send in the pipeline's lane. Raises what Endpoint.send raises; from another thread, `flush` raises it.

        A driver that takes nothing more raises nothing: what is for it waits, in order, until it does, or until its
        silence has ended the stage.
        """
        self._waiting.append((peer, message, tensors))
        if threading.get_ident() == self._owner:
            self.flush()
        else:
            self.endpoint.wake()

    @property
    def waiting(self) -> int:
        """The number of messages that wait to be sent."""
        return len(self._waiting) + len(self._reports)

    def tell(self, message: Message) -> None:
        """Send to the driver."""
        self.send(m.DRIVER, message)

    def forget_reports(self) -> None:
        """Drop what is for the driver and was not sent yet. Only the thread that owns the endpoint may call this."""
        self._reports.clear()
        # Other threads append meanwhile: nothing iterates over what they append to, and it stays the same deque.
        waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]
        self._waiting.extendleft(each for each in reversed(waiting) if each[0] != m.DRIVER)

    def flush(self) -> None:
        """Send everything that waits. Only the thread that owns the endpoint may call this."""
        self._owner = threading.get_ident()
        self._report()
        while self._waiting:
            peer, message, tensors = self._waiting.popleft()
            if peer == m.DRIVER and not tensors:
                self._reports.append(message)
                self._report()
                continue
            began_s = self._now()
            self.endpoint.send(peer, Lane.PIPELINE, message, tensors)
            self._on_sent(message, began_s)

    def _report(self) -> None:
        while self._reports:
            began_s = self._now()
            try:
                self.endpoint.send(m.DRIVER, Lane.PIPELINE, self._reports[0])
            except PeerStalled:
                return  # it stands still, or is slow
            self._on_sent(self._reports.popleft(), began_s)
