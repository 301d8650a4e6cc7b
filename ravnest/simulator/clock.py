"""The virtual clock: one heap of what is due. Decides only the order: by time, then by when it was asked for.

An event is one thing taken from the heap: the end of a computation, a message that leaves, comes or is in, a call of
the driver. Each is one function and one argument. Knows no stage and no link.
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
    __slots__ = ("_heap", "_sequence", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Action, Any]] = []
        self._sequence = 0

    @property
    def events(self) -> int:
        """How many have happened."""
        return self._sequence - len(self._heap)

    def at(self, at_s: float, action: Action, argument: Any) -> None:
        self._sequence += 1
        heappush(self._heap, (at_s, self._sequence, action, argument))

    def after(self, delay_s: float, action: Action, argument: Any) -> None:
        self._sequence += 1
        heappush(self._heap, (self.now_s + delay_s, self._sequence, action, argument))

    def run(self, on_progress: Callable[[], None] | None = None) -> None:
        """Until nothing is due any more. What happens makes no rings of references worth looking for meanwhile."""
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
