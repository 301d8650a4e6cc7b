"""How many micro-batches a cluster should have in flight: a controller, fed with what the first stage measures. Pure.

By Little's law the slowest stage stays busy when as many are in flight as it could serve during one round trip that
waits for nobody:

    n = (round trip − waiting) / slowest stage;  W = ceil(n · MARGIN) + spare_for(stages)

Both terms are measured for each micro-batch (measurements.py) and neither depends on W, so one look is enough and there
is
nothing to probe. Decides when to believe it:

- Grow at once, but only while the slowest stage idles: the period (round trip / in flight) exceeds what it takes.
- Shrink when LOOK_BEFORE_SHRINKING round trips say so, and by the spare or more, so that a rounding does not swing.
- A link may be slower than any stage. What waits there is not seen as waiting, and would ask for ever more. So a
  growth that does not bring the period that it promised shows the period of that link; from then on W is sized for
  this, and not for the slowest stage, until the period falls below it. A change of latency under way can look the same,
  so another growth is tried later: after twice as long each time that it is in vain.

Never above `largest`, which is what staleness admits and every stage has memory for. Knows no clock.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass
from itertools import islice

from ravnest.pipeline.measurements import Trip

MARGIN = 1.05
LEAST_SPARE = 2
LOOK_BEFORE_GROWING = 4
LOOK_BEFORE_SHRINKING = 16
IDLE = 1.02
"""The slowest stage idles when the period is longer than its own time by this factor."""
SAME = 1.1
"""Periods of a link that differ by less are the same."""


@dataclass(frozen=True)
class _Growth:
    """The window before it grew, the round trip then, and the period that was promised."""

    window: int
    bare_s: float
    promised_s: float


def spare_for(stages: int) -> int:
    """How many more than Little's law asks for: stages of equal speed, whose times vary, wait for each other otherwise.

    The longer the pipeline, the more.
    """
    return max(LEAST_SPARE, stages // 2)


class WindowTuner:
    def __init__(self, window: int, largest: int, stages: int) -> None:
        self.window = window
        self.bare_s = 0.0
        """The round trip without waiting, as last measured."""
        self.pace_s = 0.0
        """Seconds per micro-batch of the narrowest place, as last measured: a stage, or a link."""
        self._largest = max(window, largest)
        self._spare = spare_for(stages)
        self._trips: deque[Trip] = deque(maxlen=max(LOOK_BEFORE_SHRINKING, self._largest) + 1)
        """Those injected since the window was last changed."""
        self._first = 0
        """The first micro-batch that counts as such."""
        self._seen = 0
        self._growth: _Growth | None = None
        """The last one, until its effect is known."""
        self._link_s = 0.0
        self._vain = 0
        """How many growths in a row have shown nothing but the link."""

    def take(self, trip: Trip) -> int | None:
        """A round trip has ended. The window from now on, if it changes."""
        if trip.micro_batch < self._first:
            return None
        self._trips.append(trip)
        self._seen += 1
        if self._seen < LOOK_BEFORE_GROWING:
            return None
        look = list(islice(reversed(self._trips), LOOK_BEFORE_SHRINKING))[::-1]
        bare_s = [each.seconds - each.queued_s for each in look]
        self.bare_s = statistics.median(bare_s[-2 * LOOK_BEFORE_GROWING :])
        self.pace_s = max(trip.busiest_s, self._link_s)
        return self._judged() or self._grown(look, trip.busiest_s) or self._shrunk(bare_s)

    def _judged(self) -> int | None:
        """What the last growth has brought, now that a whole round of the larger window is through."""
        if self._seen <= self.window:
            return None
        trips, growth = self._trips, self._growth
        self._growth = None
        period_s = (trips[-1].ended_s - trips[-1 - self.window].ended_s) / self.window
        if growth is not None and period_s > growth.promised_s * SAME:
            # What waits for the link is in a later round trip already: only the first one says what its period needs.
            needed = growth.window if self._vain else self._wanted(growth.bare_s, period_s)
            self._vain += 1
            self._link_s = self.pace_s = period_s
            return self._change(min(self.window, max(growth.window, needed)))
        if growth is not None or period_s < self._link_s / SAME:
            self._link_s, self._vain = 0.0, 0  # that link is faster now, or never was the narrowest place
        return None

    def _grown(self, look: list[Trip], busiest_s: float) -> int | None:
        if self._growth is not None:
            return None
        doubted = self._seen > self.window << self._vain
        pace_s = busiest_s if doubted else self.pace_s
        wanted = self._wanted(self.bare_s, pace_s)
        if wanted <= self.window:
            return None
        period_s = statistics.median(each.seconds for each in look) / max(each.in_flight for each in look)
        if period_s <= pace_s * (IDLE if pace_s == busiest_s else SAME):
            return None
        self._growth = _Growth(self.window, self.bare_s, max(pace_s, period_s * self.window / wanted))
        return self._change(wanted)

    def _shrunk(self, bare_s: list[float]) -> int | None:
        if self._growth is not None or self._seen < LOOK_BEFORE_SHRINKING:
            return None
        if self._wanted(min(bare_s), self.pace_s) > self.window - self._spare:
            return None  # nor would the quartile, which is no shorter
        wanted = self._wanted(statistics.quantiles(bare_s, n=4)[-1], self.pace_s)
        return self._change(wanted) if wanted <= self.window - self._spare else None

    def _wanted(self, bare_s: float, pace_s: float) -> int:
        if pace_s <= 0:
            return self.window
        return min(self._largest, math.ceil(MARGIN * bare_s / pace_s) + self._spare)

    def _change(self, window: int) -> int:
        last = self._trips[-1]
        self._first = last.micro_batch + last.in_flight  # what is in flight now was injected before
        self._trips.clear()
        self._seen = 0
        self.window = window
        return window
