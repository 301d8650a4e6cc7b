"""A volunteer's machines without sockets, threads or a clock: each takes a turn whenever the volunteer hears."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ravnest.collaboration.invitation import Invitation
from ravnest.collaboration.lending import Lender, LentVisit
from ring_allreduce.transport import LineClosed, LineEvent, LineOpened, LineSaid, Message


class LentNetwork:
    """Stands in for the `Lines` of the volunteer, and makes those of its machines."""

    def __init__(self) -> None:
        self.port = 7801
        self.now_s = 0.0
        self.visits: dict[int, tuple[LentVisit, _Line]] = {}
        self.frozen: set[int] = set()
        """Lines of machines that neither say nor do anything."""
        self._events: deque[LineEvent] = deque()
        self._next = 0

    def __call__(self, *_: Any, **__: Any) -> LentNetwork:
        return self

    def now(self) -> float:
        return self.now_s

    def lend(self, given: Invitation, home: Path, *, agrees: bool = True) -> int:
        """A machine comes; returns its line."""
        self._next += 1
        line = _Line(self._next, self._events)
        self._events.append(LineOpened(self._next, "guest"))
        lender = Lender(given, f"machine {self._next}", home, agree=lambda code, folder, files: agrees)
        self.visits[self._next] = LentVisit(lender, line, 0), line  # type: ignore[arg-type]
        return self._next

    def loses(self, line: int) -> None:
        """The machine's line ends."""
        del self.visits[line]
        self._events.append(LineClosed(line, "it has left, or its process died"))

    def send(self, line: int, message: Message, tensors: Sequence[Tensor] = ()) -> None:
        if line in self.visits:
            self.visits[line][1].events.append(LineSaid(0, message, tuple(one.clone() for one in tensors)))

    def take(self, timeout_s: float) -> list[LineEvent]:
        self.now_s += timeout_s
        for line, (visit, _) in [*self.visits.items()]:
            if line not in self.frozen:
                visit.turn()
        found = [*self._events]
        self._events.clear()
        return found

    def trust(self, line: int) -> None:
        pass

    def hang_up(self, line: int, reason: str) -> None:
        if self.visits.pop(line, None) is not None:
            self._events.append(LineClosed(line, reason))

    def close(self) -> None:
        pass


class _Line:
    """What a machine's program has as its `Lines`."""

    def __init__(self, number: int, to_volunteer: deque[LineEvent]) -> None:
        self.events: deque[LineEvent] = deque()
        self._number, self._to_volunteer = number, to_volunteer

    def send(self, line: int, message: Message, tensors: Sequence[Tensor] = ()) -> None:
        self._to_volunteer.append(LineSaid(self._number, message, tuple(one.clone() for one in tensors)))

    def take(self, timeout_s: float) -> list[LineEvent]:
        found = [*self.events]
        self.events.clear()
        return found
