"""What a stage measures of the micro-batches that pass: how long they wait there, and how much of its time one takes.

Decides what counts as waiting: being here, arrived and not yet begun. Each stage adds its own to what the gradient
brings from the stages behind it, so the first stage learns of each round trip how much of it was waiting for stages,
and what the slowest stage takes. All are durations on one machine's clock; no two clocks are compared. Listens to the
machine's events and answers; steers nothing.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ravnest.pipeline import events as ev
from ravnest.pipeline import instructions as ins
from ravnest.pipeline.shape import StageShape

RECENT = 9
"""Of each kind of computation: the last so many count, by their median, so that a slow first one does not."""


@dataclass(frozen=True, slots=True)
class Passage:
    """What a gradient tells of its micro-batch's way through the stage that sends it and all stages behind."""

    queued_s: float = 0.0
    """It waited for stages so long, in all."""
    busiest_s: float = 0.0
    """The most that one of these stages takes for a micro-batch, its share of an update included."""


@dataclass(frozen=True, slots=True)
class Trip:
    """One micro-batch's way from the first stage's forward to the end of its backward there."""

    micro_batch: int
    ended_s: float
    seconds: float
    queued_s: float
    busiest_s: float
    in_flight: int
    """Just before it ended, itself included."""


class Tempo:
    """One stage's. `handled` takes every event after the machine has, with what the machine answered."""

    def __init__(self, shape: StageShape) -> None:
        self._shape = shape
        kinds = (ins.RunForward, ins.RunBackward, ins.RunInputGradients, ins.RunWeightGradients, ins.RunUpdate)
        self._recent_s: dict[type[ins.Compute], deque[float]] = {kind: deque(maxlen=RECENT) for kind in kinds}
        self._split = False
        """Whether the last backward was."""
        self.behind_s = 0.0
        """The most that a stage behind this one takes for a micro-batch, as last heard."""
        self._began_s = 0.0
        self._injected_s: dict[int, float] = {}
        self._ready_s: dict[int, float] = {}
        """When what the micro-batch needs next came: its activation, then its gradient."""
        self._passages: dict[int, Passage] = {}
        """Of micro-batches whose backward has not ended here: what is known of them so far."""

    @property
    def busy_s(self) -> float:
        """Seconds of this stage that one micro-batch takes, of late."""
        if self._split:
            backward_s = self.recent_s(ins.RunInputGradients) + self.recent_s(ins.RunWeightGradients)
        else:
            backward_s = self.recent_s(ins.RunBackward)
        update_s = self.recent_s(ins.RunUpdate)
        return self.recent_s(ins.RunForward) + backward_s + update_s / self._shape.update_every

    def recent_s(self, kind: type[ins.Compute]) -> float:
        """Seconds that one of these computations takes, of late; 0 where there was none."""
        recent = self._recent_s[kind]
        return statistics.median(recent) if recent else 0.0

    def handled(
        self, event: ev.Event, answers: Sequence[ins.Instruction], now_s: float, carried: Passage | None = None
    ) -> None:
        """`carried`: with GradientArrived, what the gradient told."""
        match event:
            case ev.ActivationArrived(micro_batch):
                self._ready_s[micro_batch] = now_s
            case ev.GradientArrived(micro_batch):
                self._ready_s[micro_batch] = now_s
                told = carried or Passage()
                self.behind_s = told.busiest_s
                self._add(micro_batch, told)
            case ev.ForwardFinished(micro_batch):
                self._recent_s[ins.RunForward].append(now_s - self._began_s)
                if self._shape.is_last:
                    self._ready_s[micro_batch] = now_s
            case ev.BackwardFinished(micro_batch):
                self._recent_s[ins.RunBackward].append(now_s - self._began_s)
                self._split = False
                self._add(micro_batch, Passage(0.0, self.busy_s))
            case ev.InputGradientsFinished(micro_batch):
                self._recent_s[ins.RunInputGradients].append(now_s - self._began_s)
                self._split = True
                self._add(micro_batch, Passage(0.0, self.busy_s))
            case ev.WeightGradientsFinished():
                self._recent_s[ins.RunWeightGradients].append(now_s - self._began_s)
            case ev.UpdateFinished():
                self._recent_s[ins.RunUpdate].append(now_s - self._began_s)
            case _:
                pass
        if answers and isinstance(answers[-1], ins.Compute):
            self._begun(answers[-1], now_s)

    def _begun(self, compute: ins.Compute, now_s: float) -> None:
        self._began_s = now_s
        if isinstance(compute, ins.RunForward) and self._shape.is_first:
            self._injected_s[compute.micro_batch] = now_s
        elif isinstance(compute, ins.RunForward | ins.RunBackward | ins.RunInputGradients):
            self._add(compute.micro_batch, Passage(now_s - self._ready_s.pop(compute.micro_batch)))

    def _add(self, micro_batch: int, more: Passage) -> None:
        known = self._passages.get(micro_batch, Passage())
        self._passages[micro_batch] = Passage(known.queued_s + more.queued_s, max(known.busiest_s, more.busiest_s))

    def passage(self, micro_batch: int) -> Passage:
        """What to tell with the gradient of a micro-batch that has just been computed; forgotten with this call."""
        return self._passages.pop(micro_batch)

    def trip(self, micro_batch: int, now_s: float, in_flight: int) -> Trip:
        """First stage: the way of a micro-batch whose backward has just ended; forgotten with this call.

        `in_flight`: before it ended.
        """
        passage = self._passages.pop(micro_batch)
        seconds = now_s - self._injected_s.pop(micro_batch)
        return Trip(micro_batch, now_s, seconds, passage.queued_s, passage.busiest_s, in_flight)
