"""What a stage measures of the micro-batches that pass: how long they wait there, and how much of its time one takes.

Decides what counts as waiting: being here, arrived and not yet begun. Each stage adds its own to what the gradient
brings from the stages behind it, so the first stage learns of each round trip how much of it was waiting for stages,
and what the slowest stage takes. All are durations on one machine's clock; no two clocks are compared. Listens to the
machine's events and answers; steers nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ravnest.pipeline import events as ev
from ravnest.pipeline import instructions as ins
from ravnest.pipeline.stage_shape import StageShape
from ring_allreduce.records import record

RECENT = 9
"""Of each kind of computation: the last so many count, by their median, so that a slow first one does not."""


@record
class Passage:
    """What a gradient tells of its micro-batch's way through the stage that sends it and all stages behind."""

    queued_s: float = 0.0
    """It waited for stages so long, in all."""
    busiest_s: float = 0.0
    """The most that one of these stages takes for a micro-batch, its share of an update included."""


@record
class Trip:
    """One micro-batch's way from the first stage's forward to the end of its backward there."""

    micro_batch: int
    ended_s: float
    seconds: float
    queued_s: float
    busiest_s: float
    in_flight: int
    """Just before it ended, itself included."""


_NOTHING = Passage()
_OTHERS = frozenset((ins.RunWeightGradients, ins.RunUpdate, ins.TakeSnapshot, ins.ApplyMerge, ins.RunEvaluation))
"""Computations that no arrival begins."""


class _Recent:
    """How long the last computations of one kind took."""

    __slots__ = ("_last_s", "median_s")

    def __init__(self) -> None:
        self._last_s: deque[float] = deque(maxlen=RECENT)
        self.median_s = 0.0

    def add(self, seconds: float) -> None:
        self._last_s.append(seconds)
        ordered = sorted(self._last_s)
        half = len(ordered) // 2
        self.median_s = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


class Tempo:
    """One stage's. `handled` takes every event after the machine has, with what the machine answered."""

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
        """Whether the last backward was."""
        self.behind_s = 0.0
        """The most that a stage behind this one takes for a micro-batch, as last heard."""
        self._began_s = 0.0
        self._injected_s: dict[int, float] = {}
        self._ready_s: dict[int, float] = {}
        """When what the micro-batch needs next came: its activation, then its gradient."""
        self._queued_s: dict[int, float] = {}
        """Of micro-batches whose backward has not ended here: how long they waited so far, here and behind."""
        self._busiest_s: dict[int, float] = {}
        """The most that a stage takes for such a micro-batch, this one and those behind."""

    @property
    def busy_s(self) -> float:
        """Seconds of this stage that one micro-batch takes, of late."""
        backward_s = self._input.median_s + self._weight.median_s if self._split else self._backward.median_s
        return self._forward.median_s + backward_s + self._update.median_s / self._update_every

    def recent_s(self, kind: type[ins.Compute]) -> float:
        """Seconds that one of these computations takes, of late; 0 where there was none."""
        return self._recent[kind].median_s

    def handled(
        self, event: ev.Event, answers: Sequence[ins.Instruction], now_s: float, carried: Passage | None = None
    ) -> None:
        """`carried`: with GradientArrived, what the gradient told."""
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
        """`last` is the computation that was begun, if any was."""
        if type(last) is ins.RunForward and self._is_first:
            self._injected_s[last.micro_batch] = self._began_s = now_s
        elif type(last) is ins.RunForward or type(last) is ins.RunBackward or type(last) is ins.RunInputGradients:
            self._began_s = now_s
            micro_batch, queued_s = last.micro_batch, self._queued_s
            queued_s[micro_batch] = queued_s.get(micro_batch, 0.0) + (now_s - self._ready_s.pop(micro_batch))
        elif type(last) in _OTHERS:
            self._began_s = now_s

    def passage(self, micro_batch: int) -> Passage:
        """What to tell with the gradient of a micro-batch that has just been computed; forgotten with this call."""
        return Passage(self._queued_s.pop(micro_batch, 0.0), self._busiest_s.pop(micro_batch))

    def trip(self, micro_batch: int, now_s: float, in_flight: int) -> Trip:
        """First stage: the way of a micro-batch whose backward has just ended; forgotten with this call.

        `in_flight`: before it ended.
        """
        passage = self.passage(micro_batch)
        seconds = now_s - self._injected_s.pop(micro_batch)
        return Trip(micro_batch, now_s, seconds, passage.queued_s, passage.busiest_s, in_flight)
