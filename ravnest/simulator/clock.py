"""The virtual clock: a heap of the events that are due.

An event is a function, its argument and a moment, such as the end of a computation, the arrival of a message, or a call
of the driver. Events happen in the order of their moments, and those of one moment in the order in which they were
asked for.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Action = Callable[[Any], None]

PROGRESS_EVERY = 1 << 16
"""Events between two calls of `on_progress`."""


class VirtualClock:
    """The time of a simulated run, in seconds since its start, and what is still to happen."""

    __slots__ = ("_heap", "_sequence", "now_s")

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s
        self._heap: list[tuple[float, int, Action, Any]] = []
        self._sequence = 0

    @property
    def events(self) -> int:
        """How many events have happened."""
        return self._sequence - len(self._heap)

    def at(self, at_s: float, action: Action, argument: Any) -> None:
        """Call `action` with `argument` at the moment `at_s`."""
        self._sequence += 1
        heappush(self._heap, (at_s, self._sequence, action, argument))

    def after(self, delay_s: float, action: Action, argument: Any) -> None:
        """Call `action` with `argument` in `delay_s` seconds."""
        self._sequence += 1
        heappush(self._heap, (self.now_s + delay_s, self._sequence, action, argument))

    def run(self, on_progress: Callable[[], None] | None = None) -> None:
        """Let events happen until none is due. `on_progress` is called every PROGRESS_EVERY events, and at the end.

        The garbage collector is off meanwhile: events make no cycles of references that are worth looking for.
        """
        heap, pop = self._heap, heappop
        collected = gc.isenabled()
        gc.disable()
        try:
            while heap:
                for _ in range(PROGRESS_EVERY):
                    if not heap:
                        break
                    self.now_s, _, action, argument = pop(heap)
                    action(argument)
                if on_progress is not None:
                    on_progress()
        finally:
            if collected:
                gc.enable()
