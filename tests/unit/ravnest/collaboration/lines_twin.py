"""Lines without sockets, threads or a clock: what was sent lies in `sent`, and what is to come is put into `events`."""

from collections import deque
from collections.abc import Sequence

from torch import Tensor

from ring_allreduce.transport import LineEvent, Message


class LinesTwin:
    """Stands in for `Lines`. Each take() gives one event, and lets `idle_s` of its clock pass when there is none."""

    def __init__(self, idle_s: float = 0.5) -> None:
        self.port: int | None = 7800
        self.now_s = 0.0
        self.events: deque[LineEvent] = deque()
        self.sent: list[tuple[int, Message, tuple[Tensor, ...]]] = []
        self.hung_up: dict[int, str] = {}
        self._idle_s = idle_s

    def now(self) -> float:
        """The clock of this twin."""
        return self.now_s

    def said(self, kind: type[Message], line: int | None = None) -> list[Message]:
        """What was sent of one kind."""
        return [message for to, message, _ in self.sent if isinstance(message, kind) and line in (None, to)]

    def send(self, line: int, message: Message, tensors: Sequence[Tensor] = ()) -> None:
        self.sent.append((line, message, tuple(one.clone() for one in tensors)))

    def take(self, timeout_s: float) -> list[LineEvent]:
        if self.events:
            return [self.events.popleft()]
        self.now_s += min(timeout_s, self._idle_s) if timeout_s > 0 else 0.001
        return []

    def trust(self, line: int) -> None:
        pass

    def hang_up(self, line: int, reason: str) -> None:
        self.hung_up[line] = reason

    def close(self) -> None:
        pass
