"""A stage machine with what measures it beside it, and at the first stage what tunes the window. Sans-I/O.

What both drivers run: the stage's process, and the virtual clock. Only the first of several stages of an asynchronous
pipeline has a window to tune, and only the others have a backward that may be split.
"""

from __future__ import annotations

from collections.abc import Callable

from cluster_planner.inputs.model_costs import SplitBackward
from ravnest.pipeline import events as ev
from ravnest.pipeline import instructions as ins
from ravnest.pipeline.controllers import WindowTuner
from ravnest.pipeline.measurements import Passage, Tempo
from ravnest.pipeline.split_controller import BackwardTimes, SplitTuner
from ravnest.pipeline.stage_machine import StageMachine
from ravnest.pipeline.stage_shape import StageShape


class TunedStage:
    """`handle` is the machine's, and also feeds the tempo and the tuner."""

    def __init__(
        self,
        shape: StageShape,
        largest_window: int | None,
        on_window: Callable[[WindowTuner], None] | None = None,
        *,
        split: SplitBackward = "never",
        on_split: Callable[[SplitTuner], None] | None = None,
    ) -> None:
        """`largest_window`: None leaves the window as it is. `on_window`: told each time that it is tuned. `split`:
        when to split backwards, once `may_split` was called; `on_split`: told each time that it is decided anew.
        """
        self.machine = StageMachine(shape)
        self._is_first = shape.is_first
        self._tempo = Tempo(shape)
        self._handled = self._tempo.handled
        self._on_window = on_window
        tunes = shape.is_first and not shape.is_last and not shape.is_synchronous
        self._tuner = None
        if tunes and largest_window is not None:
            self._tuner = WindowTuner(shape.window, largest_window, shape.stages)
        self._split = split
        self._on_split = on_split
        self._split_tuner: SplitTuner | None = None

    def may_split(self) -> None:
        """Backwards of this stage can be split: from the next gradient on, decide when. In a schedule whose order is
        fixed, which is a baseline, only when told to do so always."""
        shape = self.machine.shape
        if shape.room and (self._split == "always" or (self._split == "auto" and not shape.is_synchronous)):
            updates_wait = shape.max_staleness == 0
            self._split_tuner = SplitTuner(self._split, shape.update_every, synchronous=updates_wait)

    def handle(self, event: ev.Event, now_s: float, carried: Passage | None = None) -> list[ins.Instruction]:
        """`carried`: with GradientArrived, what the gradient told."""
        machine = self.machine
        in_flight = machine.in_flight if self._is_first else 0
        answers = machine.handle(event, now_s)
        if machine.failure is not None:
            return answers
        self._handled(event, answers, now_s, carried)
        if self._is_first:
            if type(event) is not ev.BackwardFinished:
                return answers
            trip = self._tempo.trip(event.micro_batch, now_s, in_flight)
            window = None if self._tuner is None else self._tuner.take(trip)
            if window is not None:
                answers += self.handle(ev.WindowChanged(window), now_s)
                if self._on_window is not None and self._tuner is not None:
                    self._on_window(self._tuner)
        elif self._split_tuner is not None and isinstance(event, ev.BackwardFinished | ev.InputGradientsFinished):
            answers += self._decide_split(self._split_tuner, now_s)
        return answers

    def _decide_split(self, tuner: SplitTuner, now_s: float) -> list[ins.Instruction]:
        tempo = self._tempo
        times = BackwardTimes(
            whole_s=tempo.recent_s(ins.RunBackward),
            input_s=tempo.recent_s(ins.RunInputGradients),
            weight_s=tempo.recent_s(ins.RunWeightGradients),
            busy_s=tempo.busy_s,
            behind_s=tempo.behind_s,
        )
        if not tuner.take(now_s, times):
            return []
        answers = self.handle(ev.SplitChanged(tuner.splits), now_s)
        if self._on_split is not None:
            self._on_split(tuner)
        return answers

    def passage(self, micro_batch: int) -> Passage:
        """What to tell with the gradient that a SendGradient sends; forgotten with this call."""
        return self._tempo.passage(micro_batch)
