"""Parts of volunteers' contributions that wait for each other: what the serving machine has, and what helpers say.

In: part 0 of contributions, as they come, and helpers' words of the other parts, numbered for each visit in an epoch.
Out: contributions that are whole everywhere, or refused somewhere. Pure, but for the word to helpers to forget one.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ravnest.collaboration.epochs import RELAYED, Epoch, Epochs, Helper
from ravnest.collaboration.kept_averages import TooLate
from ravnest.collaboration.messages import PartMessage
from ravnest.collaboration.transfers import Incoming
from ravnest.collaboration.visitor import Visitor

MOST_UNMATCHED = 4
"""So many parts of a volunteer's contributions may wait for their other parts."""


@dataclass(frozen=True)
class Complete:
    """A contribution has come whole everywhere. `elsewhere`: how far its other parts are from the last mean."""

    visitor: Visitor
    own: Incoming
    elsewhere: float
    numbered: tuple[int, int]


@dataclass(frozen=True)
class Refused:
    """Another machine has refused its part of a contribution."""

    visitor: Visitor
    reason: str


Matched = Complete | Refused


class Matching:
    """All parts that wait, at the machine that serves."""

    def __init__(self, epochs: Epochs, drop: Callable[[tuple[int, int]], None]) -> None:
        """`drop`: tells helpers that a contribution, by visit and number, does not count."""
        self._epochs, self._drop = epochs, drop
        self._own: dict[int, deque[Incoming | None]] = {}
        self._parts: dict[tuple[int, int], deque[PartMessage]] = {}
        self._numbers: dict[int, int] = {}
        self._gave: dict[int, int] = {}  # by visit: the last step to which a contribution has come whole
        self._numbered_in = 0

    def gave(self, line: int, step: int) -> bool:
        """Whether a contribution of this visit to that step has come whole."""
        return self._gave.get(line) == step

    def left(self, line: int) -> None:
        """What waits of this visit comes to nothing, and it is numbered anew."""
        for known in (self._own, self._numbers, self._gave):
            known.pop(line, None)
        self._parts = {key: queue for key, queue in self._parts.items() if key[0] != line}

    def clear(self) -> None:
        """An epoch is over."""
        self._own, self._parts = {}, {}

    def own_came(self, visitor: Visitor, epoch: int, own: Incoming | None) -> list[Matched]:
        """Part 0 of a contribution by this epoch has come whole, or was refused (None)."""
        if not self._is_current(epoch):
            return []
        queue = self._own.setdefault(visitor.line, deque())
        queue.append(own)
        if len(queue) > MOST_UNMATCHED:
            raise TooLate("its contributions' other parts do not come")
        return self._matched(visitor)

    def part_came(self, helper: Helper, message: PartMessage, visitors: Mapping[int, Visitor]) -> list[Matched]:
        """A helper has its part of a contribution, or refuses it. `visitors`: that have joined, by line."""
        epoch, visitor = self._epochs.current, visitors.get(message.visit % RELAYED)
        if epoch is None or not self._is_current(message.epoch) or visitor is None:
            return []
        if message.visit != epoch.visit_of(visitor.line):
            return []  # it has sent that itself, and since then does not reach this helper
        queue = self._parts.setdefault((visitor.line, epoch.part_of(helper)), deque(maxlen=MOST_UNMATCHED))
        queue.append(message)
        return self._matched(visitor)

    def late(self, epoch: Epoch, step: int) -> list[Helper]:
        """Helpers that lack the parts of all volunteers whose own parts wait. One volunteer is late itself, as
        step_owner.py says, wherever others take part: it may have sent a helper nothing."""
        waiting = [
            line for line, queue in self._own.items() if any(one is not None and one.step == step for one in queue)
        ]
        if len(waiting) < min(2, len(epoch.taking_part)):
            return []
        lack = [not any(self._parts.get((line, part)) for line in waiting) for part in range(1, epoch.division.parts)]
        return [helper for helper, lacks in zip(epoch.helpers, lack, strict=True) if waiting and lacks]

    def _is_current(self, epoch: int) -> bool:
        """Whether what comes by this epoch counts; contributions are numbered anew in each."""
        current = self._epochs.current
        if current is None or current.number != epoch:
            return False
        if self._numbered_in != epoch:
            self._numbered_in = epoch
            self._own, self._parts, self._numbers = {}, {}, {}
        return True

    def _matched(self, visitor: Visitor) -> list[Matched]:
        epoch, found, own = self._epochs.current, list[Matched](), self._own.get(visitor.line)
        if epoch is None:
            return []
        queues = [self._parts.get((visitor.line, part)) for part in range(1, epoch.division.parts)]
        while own and all(queues):
            mine, parts = own.popleft(), [queue.popleft() for queue in queues if queue]
            number = self._numbers.get(visitor.line, 0)
            self._numbers[visitor.line], visit = number + 1, epoch.visit_of(visitor.line)
            reason = next((part.refused for part in parts if part.refused), "")
            due = None if mine is None else (mine.step, mine.samples, number)
            if due and any((part.step, part.samples, part.number) != due for part in parts):
                reason = reason or "its parts are of several contributions"
            if mine is None or reason:
                self._drop((visit, number))
                found += [] if mine is None else [Refused(visitor, reason)]
            else:
                elsewhere = math.hypot(*(part.deviation for part in parts))
                found.append(Complete(visitor, mine, elsewhere, (visit, number)))
                self._gave[visitor.line] = mine.step
        return found
