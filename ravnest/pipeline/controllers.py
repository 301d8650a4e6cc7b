"""Two controllers fed with what a stage measures: the size of the window, and whether backwards are split. Pure.

**The window.** By Little's law the slowest stage stays busy when as many micro-batches are in flight as it could serve
during one round trip that waits for nobody:

    n = (round trip − waiting) / slowest stage;  W = ceil(n · MARGIN) + spare_for(stages)

Both terms are measured for each micro-batch (tuned_stage.py) and neither depends on W, so one look is enough and
nothing has to be probed. `WindowTuner` decides when to believe it:

- It grows at once, but only while the slowest stage idles: the period (round trip / in flight) exceeds what it takes.
- It shrinks when LOOK_BEFORE_SHRINKING round trips say so, and by the spare or more, so that a rounding does not swing.
- A link may be slower than any stage. What waits there is not seen as waiting, and would ask for ever more. So a growth
  that does not bring the period that it promised shows the period of that link. From then on W is sized for this, and
  not for the slowest stage, until the period falls below it. A change of latency under way can look the same, so
  another growth is tried later: after twice as long each time that it is in vain.

W never exceeds `largest`, which is what staleness admits and every stage has memory for.

**Split backwards.** A split backward sends the input gradients `whole − input` seconds earlier, which shortens every
round trip by as much, and computes for `cost = input + weight − whole` seconds longer.

- In an asynchronous pipeline a micro-batch is limited by the slowest stage, or by the round trip through the window:
  period = round trip / W. Only in the second case is a shorter round trip worth anything. The stage then idles for
  `period − busy`, and the cost is taken from time that nobody needs. So `SplitTuner` splits where the period is longer
  than the slowest stage takes, as far as it is known here, and the idle time is worth the cost IDLE_COSTS times over.
- In a synchronous pipeline there is a flush at each update: the gradients of one micro-batch pass all stages with
  nothing to overlap. A split saves `whole − input` an update, and each of its U micro-batches costs at most `cost`.

It decides after PROBE micro-batches of each kind, and looks again every REVIEW. Times are passed in, in seconds.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass
from itertools import islice

from cluster_planner import SplitBackward
from ring_allreduce.ring import record

MARGIN = 1.05
LEAST_SPARE = 2
LOOK_BEFORE_GROWING = 4
LOOK_BEFORE_SHRINKING = 16
IDLE = 1.02
"""The slowest stage idles when the period is longer than its own time by this factor."""
SAME = 1.1
"""Periods of a link that differ by a smaller factor count as the same."""

PROBE = 6
REVIEW = 48
IDLE_COSTS = 2.0
WAITS = 1.1
"""The round trip limits the period where that is longer by this factor than what the slowest stage takes."""
STILL_WAITS = 1.03
"""The same factor once backwards are split."""


@record
class RoundTrip:
    """The way of one micro-batch from the first stage's forward to the end of its backward there."""

    micro_batch: int
    ended_s: float
    seconds: float
    queued_s: float
    busiest_s: float
    in_flight: int
    """Micro-batches in flight just before it ended, itself included."""


@dataclass(frozen=True)
class _Growth:
    """The window before it grew, the round trip without waiting then, and the period that was promised."""

    window: int
    bare_s: float
    promised_s: float


def spare_for(stages: int) -> int:
    """Return how many more micro-batches to have in flight than Little's law asks for, the more the longer the
    pipeline.

    Without them stages of equal speed whose times vary would wait for each other.
    """
    return max(LEAST_SPARE, stages // 2)


class WindowTuner:
    """Sizes the window of one cluster, from `window` and never above `largest`, in a pipeline of `stages`."""

    def __init__(self, window: int, largest: int, stages: int) -> None:
        self.window = window
        self.bare_s = 0.0
        """The round trip without waiting, as last measured."""
        self.pace_s = 0.0
        """Seconds per micro-batch of the narrowest place, as last measured: a stage, or a link."""
        self._largest = max(window, largest)
        self._spare = spare_for(stages)
        self._trips: deque[RoundTrip] = deque(maxlen=max(LOOK_BEFORE_SHRINKING, self._largest) + 1)
        """Those injected since the window was last changed."""
        self._first = 0
        """The first micro-batch that counts as such."""
        self._seen = 0
        self._growth: _Growth | None = None
        """The last one, until its effect is known."""
        self._link_s = 0.0
        self._vain = 0
        """How many growths in a row have shown nothing but the link."""

    def take(self, trip: RoundTrip) -> int | None:
        """Take a round trip that has ended. Returns the window from now on where it changes, else None."""
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
        """Return what the last growth has brought, now that a whole round of the larger window is through."""
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

    def _grown(self, look: list[RoundTrip], busiest_s: float) -> int | None:
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


@dataclass(frozen=True, slots=True)
class BackwardTimes:
    """What a stage has lately taken for one micro-batch, in seconds; 0 where nothing was measured yet."""

    whole_s: float
    """A whole backward."""
    input_s: float
    """The first part of a split backward; `weight_s` is the second."""
    weight_s: float
    busy_s: float
    """Its forward, its backward as it is now, and its share of an update."""
    behind_s: float
    """The most that a stage behind this one takes."""

    @property
    def saved_s(self) -> float:
        return self.whole_s - self.input_s

    @property
    def cost_s(self) -> float:
        return max(0.0, self.input_s + self.weight_s - self.whole_s)


class SplitTuner:
    """Decides for one stage whether its backwards are split: always, never, or ("auto") by what it measures."""

    def __init__(self, mode: SplitBackward, update_every: int, *, synchronous: bool) -> None:
        self.mode = mode
        self.splits = mode == "always"
        self.times: BackwardTimes | None = None
        """The times that the last decision was made by; None before the first."""
        self.period_s = 0.0
        """Seconds from one micro-batch to the next at that decision."""
        self._update_every = update_every
        self._synchronous = synchronous
        self._probe = -(-PROBE // update_every) * update_every  # whole updates, whose time counts too
        self._review = -(-REVIEW // update_every) * update_every
        self._told = False
        self._began_s: float | None = None
        self._seen = 0

    def take(self, now_s: float, times: BackwardTimes) -> bool:
        """Take what was measured when a gradient was computed. Returns whether `splits` or its reason is new."""
        if self.mode != "auto":
            told, self._told = self._told, True
            return not told and self.splits
        if self._began_s is None:
            self._began_s = now_s
            return False
        self._seen += 1
        if self._seen < (self._probe if self.times is None else self._review):
            return False
        self.period_s = (now_s - self._began_s) / self._seen
        self._began_s, self._seen = now_s, 0
        if self.times is None and not times.input_s:
            self.splits = True  # to measure it
            return True
        before, first = self.splits, self.times is None
        self.times = times
        self.splits = self._pays(times)
        return first or self.splits != before

    def _pays(self, times: BackwardTimes) -> bool:
        if not times.input_s or times.saved_s <= 0:
            return False
        if self._synchronous:
            return times.saved_s > self._update_every * times.cost_s
        slowest_s = max(times.busy_s, times.behind_s)
        if self.splits:
            return self.period_s > slowest_s * STILL_WAITS
        idle_s = self.period_s - times.busy_s
        return self.period_s > slowest_s * WAITS and idle_s > IDLE_COSTS * times.cost_s
