"""Whether a stage's backward should be split: a controller, fed with what the stage measures. Pure.

A split backward sends the input gradients `whole − input` seconds earlier, which shortens every round trip by as much,
and computes for `cost = input + weight − whole` seconds longer. A micro-batch is

    asynchronous    limited by the slowest stage, or by the round trip through the window: period = round trip / W

and only in the second case is a shorter round trip worth anything; the stage then idles for `period − busy`, and the
cost is taken from time that nobody needs. So split where the period is longer than the slowest stage takes, as far as
it is known here, and the idle time is worth the cost IDLE_COSTS times over.

    synchronous     a flush at each update: the gradients of one micro-batch pass all stages with nothing to overlap,
                    which saves `whole − input` an update, and each of its U micro-batches costs at most `cost`

Decides after PROBE micro-batches of each kind, and looks again every REVIEW. Knows no clock, and not how a backward is
split.
"""

from __future__ import annotations

from dataclasses import dataclass

from cluster_planner.inputs.model_costs import SplitBackward

PROBE = 6
REVIEW = 48
IDLE_COSTS = 2.0
WAITS = 1.1
"""The period is that of the round trip where it is longer by this factor than what the slowest stage takes."""
STILL_WAITS = 1.03
"""The same, once backwards are split."""


@dataclass(frozen=True, slots=True)
class BackwardTimes:
    """What a stage takes for one micro-batch of late, in seconds; 0 where nothing was measured yet."""

    whole_s: float
    """A whole backward."""
    input_s: float
    """The parts of a split one."""
    weight_s: float
    busy_s: float
    """Everything: forward, backward as it is now, and its share of an update."""
    behind_s: float
    """The most of any stage behind this one."""

    @property
    def saved_s(self) -> float:
        return self.whole_s - self.input_s

    @property
    def cost_s(self) -> float:
        return max(0.0, self.input_s + self.weight_s - self.whole_s)


class SplitTuner:
    def __init__(self, mode: SplitBackward, update_every: int, *, synchronous: bool) -> None:
        self.mode = mode
        self.splits = mode == "always"
        self.times: BackwardTimes | None = None
        """What was last decided by; None before."""
        self.period_s = 0.0
        """Seconds from one micro-batch to the next, then."""
        self._update_every = update_every
        self._synchronous = synchronous
        self._probe = -(-PROBE // update_every) * update_every  # whole updates, whose time counts too
        self._review = -(-REVIEW // update_every) * update_every
        self._told = False
        self._began_s: float | None = None
        self._seen = 0

    def take(self, now_s: float, times: BackwardTimes) -> bool:
        """A gradient was computed. Whether `splits`, or the reason for it, is new."""
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
