"""A stage machine with what measures it and what tunes it: the stage as the real runtime and the virtual clock run it.

`StageTimings` listens to the machine's events and answers, and measures how long micro-batches wait at the stage and
how much of its time one takes. Waiting is to be here, arrived and not yet begun. Each stage adds its own waiting to
what the gradient brings from the stages behind it (`Passage`). So the first stage learns of each round trip how much of
it was waiting for stages, and what the slowest stage takes. All are durations on one machine's clock; no two clocks are
compared.

`TunedStage` passes events to the machine, measures, and hands the measurements to the controllers (controllers.py).
Only the first of several stages of an asynchronous pipeline has a window to tune, and only the others have a backward
that may be split. Sans-I/O: times are passed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from cluster_planner import SplitBackward
from ravnest.pipeline import events as ev
from ravnest.pipeline import instructions as ins
from ravnest.pipeline.controllers import BackwardTimes, RoundTrip, SplitTuner, WindowTuner
from ravnest.pipeline.stage_machine import StageMachine
from ravnest.pipeline.stage_shape import StageShape
from ring_allreduce.ring import record

RECENT = 9
"""The median of so many last computations of a kind counts, so that a slow first one does not."""


@record
class Passage:
    """What a gradient tells of its micro-batch's way through the stage that sends it and all stages behind it."""

    queued_s: float = 0.0
    """How long the micro-batch waited for stages, in all."""
    busiest_s: float = 0.0
    """The most that one of these stages takes for a micro-batch, its share of an update included."""


_NOTHING = Passage()
_OTHERS = frozenset((ins.RunWeightGradients, ins.RunUpdate, ins.TakeSnapshot, ins.ApplyMerge, ins.RunEvaluation))
"""Computations that no arrival begins."""


class _Recent:
    """The median time of the last computations of one kind."""

    __slots__ = ("_last_s", "median_s")

    def __init__(self) -> None:
        self._last_s: deque[float] = deque(maxlen=RECENT)
        self.median_s = 0.0

    def add(self, seconds: float) -> None:
        self._last_s.append(seconds)
        ordered = sorted(self._last_s)
        half = len(ordered) // 2
        self.median_s = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


class StageTimings:
    """Measures one stage. `handled` takes every event after the machine has, with what the machine answered."""

    def __init__(self, shape: StageShape) -> None:
        self._is_first, self._is_last = shape.is_first, shape.is_last
        self._update_every = shape.update_every
        self._forward, self._backward, self._input, self._weight, self._update = (_Recent() for _ in range(5))
        self._recent: dict[type[ins.Compute], _Recent] = {
            ins.RunForward: self._forward,
            ins.RunBackward: self._backward,
            ins.RunInputGradients: self._input,
            ins.RunWeightGradients: self._weight,
            ins.RunUpdate: self._update,
        }
        self._split = False
        """Whether the last backward was split."""
        self.behind_s = 0.0
        """The most that a stage behind this one takes for a micro-batch, as last heard."""
        self._began_s = 0.0
        self._injected_s: dict[int, float] = {}
        self._ready_s: dict[int, float] = {}
        """When what the micro-batch needs next came: its activation, then its gradient."""
        self._queued_s: dict[int, float] = {}
        """For micro-batches whose backward has not ended here: how long they have waited so far, here and behind."""
        self._busiest_s: dict[int, float] = {}
        """The most that a stage takes for such a micro-batch, this one and those behind."""

    @property
    def busy_s(self) -> float:
        """Seconds of this stage that one micro-batch has lately taken."""
        backward_s = self._input.median_s + self._weight.median_s if self._split else self._backward.median_s
        return self._forward.median_s + backward_s + self._update.median_s / self._update_every

    def recent_s(self, kind: type[ins.Compute]) -> float:
        """Seconds that one of these computations has lately taken; 0 where there was none."""
        return self._recent[kind].median_s

    def handled(
        self, event: ev.Event, answers: Sequence[ins.Instruction], now_s: float, carried: Passage | None = None
    ) -> None:
        """Take an event, what the machine answered to it, and when. `carried`: what an arrived gradient has told."""
        # The frequent ones first, of which a simulation hands over millions a minute: a match is slower.
        if type(event) is ev.ForwardFinished:
            self._forward.add(now_s - self._began_s)
            if self._is_last:
                self._ready_s[event.micro_batch] = now_s
        elif type(event) is ev.BackwardFinished:
            self._backward.add(now_s - self._began_s)
            self._gradient_made(event.micro_batch, split=False)
        elif type(event) is ev.ActivationArrived:
            self._ready_s[event.micro_batch] = now_s
        elif type(event) is ev.GradientArrived:
            micro_batch = event.micro_batch
            self._ready_s[micro_batch] = now_s
            told = carried or _NOTHING
            self.behind_s = self._busiest_s[micro_batch] = told.busiest_s
            self._queued_s[micro_batch] = self._queued_s.get(micro_batch, 0.0) + told.queued_s
        elif type(event) is ev.InputGradientsFinished:
            self._input.add(now_s - self._began_s)
            self._gradient_made(event.micro_batch, split=True)
        elif type(event) is ev.WeightGradientsFinished:
            self._weight.add(now_s - self._began_s)
        elif type(event) is ev.UpdateFinished:
            self._update.add(now_s - self._began_s)
        if answers:
            self._begun(answers[-1], now_s)

    def _gradient_made(self, micro_batch: int, *, split: bool) -> None:
        self._split = split
        self._busiest_s[micro_batch] = max(self._busiest_s.get(micro_batch, 0.0), self.busy_s)

    def _begun(self, last: ins.Instruction, now_s: float) -> None:
        """Note what `last` begins, where it is a computation."""
        if type(last) is ins.RunForward and self._is_first:
            self._injected_s[last.micro_batch] = self._began_s = now_s
        elif type(last) is ins.RunForward or type(last) is ins.RunBackward or type(last) is ins.RunInputGradients:
            self._began_s = now_s
            micro_batch, queued_s = last.micro_batch, self._queued_s
            queued_s[micro_batch] = queued_s.get(micro_batch, 0.0) + (now_s - self._ready_s.pop(micro_batch))
        elif type(last) in _OTHERS:
            self._began_s = now_s

    def passage(self, micro_batch: int) -> Passage:
        """Return what to tell with the gradient of a micro-batch that has just been computed. This call forgets it."""
        return Passage(self._queued_s.pop(micro_batch, 0.0), self._busiest_s.pop(micro_batch))

    def trip(self, micro_batch: int, now_s: float, in_flight: int) -> RoundTrip:
        """Return the round trip of a micro-batch whose backward has just ended at the first stage, and forget it.

        in_flight: the micro-batches in flight before it ended.
        """
        passage = self.passage(micro_batch)
        seconds = now_s - self._injected_s.pop(micro_batch)
        return RoundTrip(micro_batch, now_s, seconds, passage.queued_s, passage.busiest_s, in_flight)


class TunedStage:
    """A StageMachine whose `handle` also measures and tunes."""

    def __init__(
        self,
        shape: StageShape,
        largest_window: int | None,
        on_window: Callable[[WindowTuner], None] | None = None,
        *,
        split: SplitBackward = "never",
        on_split: Callable[[SplitTuner], None] | None = None,
    ) -> None:
        """Make the machine of a stage of this shape.

        largest_window: up to which the window is tuned; None leaves it as it is.
        on_window: is called each time that the window has been tuned.
        split: when to split backwards, once `may_split` was called.
        on_split: is called each time that this has been decided anew.
        """
        self.machine = StageMachine(shape)
        self._is_first = shape.is_first
        self._timings = StageTimings(shape)
        self._handled = self._timings.handled
        self._on_window = on_window
        tunes = shape.is_first and not shape.is_last and not shape.is_synchronous
        self._tuner = None
        if tunes and largest_window is not None:
            self._tuner = WindowTuner(shape.window, largest_window, shape.stages)
        self._split = split
        self._on_split = on_split
        self._split_tuner: SplitTuner | None = None

    def may_split(self) -> None:
        """Backwards of this stage can be split: decide when, from the next gradient on.

        A schedule whose order is fixed is a baseline, and splits only when told to do so always.
        """
        shape = self.machine.shape
        if shape.room and (self._split == "always" or (self._split == "auto" and not shape.is_synchronous)):
            updates_wait = shape.max_staleness == 0
            self._split_tuner = SplitTuner(self._split, shape.update_every, synchronous=updates_wait)

    def handle(self, event: ev.Event, now_s: float, carried: Passage | None = None) -> list[ins.Instruction]:
        """Return the instructions that follow from `event`, as from StageMachine.handle. `carried`: what an arrived
        gradient says.
        """
        machine = self.machine
        in_flight = machine.in_flight if self._is_first else 0
        answers = machine.handle(event, now_s)
        if machine.failure is not None:
            return answers
        self._handled(event, answers, now_s, carried)
        if self._is_first:
            if type(event) is not ev.BackwardFinished:
                return answers
            trip = self._timings.trip(event.micro_batch, now_s, in_flight)
            window = None if self._tuner is None else self._tuner.take(trip)
            if window is not None:
                answers += self.handle(ev.WindowChanged(window), now_s)
                if self._on_window is not None and self._tuner is not None:
                    self._on_window(self._tuner)
        elif self._split_tuner is not None and isinstance(event, ev.BackwardFinished | ev.InputGradientsFinished):
            answers += self._decide_split(self._split_tuner, now_s)
        return answers

    def _decide_split(self, tuner: SplitTuner, now_s: float) -> list[ins.Instruction]:
        timings = self._timings
        times = BackwardTimes(
            whole_s=timings.recent_s(ins.RunBackward),
            input_s=timings.recent_s(ins.RunInputGradients),
            weight_s=timings.recent_s(ins.RunWeightGradients),
            busy_s=timings.busy_s,
            behind_s=timings.behind_s,
        )
        if not tuner.take(now_s, times):
            return []
        answers = self.handle(ev.SplitChanged(tuner.splits), now_s)
        if self._on_split is not None:
            self._on_split(tuner)
        return answers

    def passage(self, micro_batch: int) -> Passage:
        """Return what to tell with the gradient that a SendGradient sends. This call forgets it."""
        return self._timings.passage(micro_batch)
