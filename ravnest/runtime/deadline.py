"""When silence means that a peer is gone: deadlines derived from what was measured (design §9).

Pure: time is passed in. A deadline is a multiple of the usual gap between signs of life, median plus spread, and never
below a floor, since a busy machine schedules late. docs/operating.md has the table of all deadlines.
"""

import statistics
from collections import deque

ALIVE_EVERY_S = 1.0
"""How often the driver and the stages tell each other that they live."""

SILENCE_FLOOR_S = 20.0
"""No peer is given up sooner than this, however regular it was."""

START_DEADLINE_S = 180.0
"""Ray, the actors and their imports: nothing has been measured yet, so this one is a constant."""

STATE_DEADLINE_S = 120.0
"""Longest time without one more piece of state arriving while weights are handed out or collected."""

STALL_FLOOR_S = 60.0
"""A run in which no stage makes any progress for this long, or for many times its usual gap, has stalled."""

_GAPS_KEPT = 64


class SilenceDeadline:
    """Expires when nothing was heard for `factor` × (median + 2·spread) of the usual gap, at least `floor_s`."""

    def __init__(self, now_s: float, *, floor_s: float = SILENCE_FLOOR_S, factor: float = 8.0) -> None:
        self._floor_s = floor_s
        self._factor = factor
        self._last_s = now_s
        self._gaps_s: deque[float] = deque(maxlen=_GAPS_KEPT)

    def heard(self, now_s: float) -> None:
        """A sign of life."""
        self._gaps_s.append(max(0.0, now_s - self._last_s))
        self._last_s = now_s

    def silent_s(self, now_s: float) -> float:
        return now_s - self._last_s

    def limit_s(self) -> float:
        """How long a silence may last."""
        if len(self._gaps_s) < 2:
            return self._floor_s
        median = statistics.median(self._gaps_s)
        spread = statistics.median(abs(gap - median) for gap in self._gaps_s)
        return max(self._floor_s, self._factor * (median + 2 * spread))

    def expired(self, now_s: float) -> bool:
        return self.silent_s(now_s) > self.limit_s()
