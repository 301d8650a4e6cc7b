"""The stage machine: what one stage of one cluster does next, given what has happened. Sans-I/O.

It decides which events can follow and what the stage sends, and asks work_order.py which of its computations is next.
The same machine runs under the real runtime and under the virtual clock. It deals in numbers only: it is given no
tensor, socket or peer name, and `now_s` only feeds the ledger.

Update g consists of the micro-batches [g·U, (g+1)·U), in order, at every stage. Sends are issued as soon as what they
need is computed (design §6 and §7).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ravnest.pipeline import events as ev
from ravnest.pipeline import instructions as ins
from ravnest.pipeline.evaluations import Evaluations
from ravnest.pipeline.flow import Admission, Flow
from ravnest.pipeline.stage_shape import IllegalEventError, StageShape, require
from ravnest.pipeline.time_ledger import KIND_OF_COMPUTE, Ledger
from ravnest.pipeline.update_boundary import GradientNorms, UpdateBoundary
from ravnest.pipeline.work_order import WorkOrder


class StageMachine:
    """One stage. `handle` takes each event in the order in which it happened.

    An event that cannot be is answered by one `Fail`, and every later event by nothing, since the state is no longer
    trusted.
    """

    def __init__(self, shape: StageShape) -> None:
        self.shape = shape
        self._is_first, self._is_last = shape.is_first, shape.is_last
        self._update_every, self._clip = shape.update_every, shape.clip
        self.ledger = Ledger()
        self.running: ins.Compute | None = None
        self.failure: str | None = None
        self.started = False
        self._begin(0, 0, 0)

    def _begin(self, version: int, merged: int, contributed: int) -> None:
        self._flow = Flow(self.shape, version)
        self._admission = Admission(self.shape)
        self._norms = GradientNorms(self.shape, version)
        self._boundary = UpdateBoundary(self.shape, merged, contributed)
        self._evaluations = Evaluations(self.shape)
        parts = self._flow, self._admission, self._norms, self._boundary, self._evaluations
        self._order = WorkOrder(self.shape, *parts)
        self._drain_reported = self._ends = False

    # What has come of it, for metrics.

    @property
    def version(self) -> int:
        """The number of updates that the stage has finished."""
        return self._flow.version

    @property
    def in_flight(self) -> int:
        """The number of micro-batches whose forward has begun here and whose backward has not finished."""
        return self._flow.in_flight

    @property
    def splits(self) -> bool:
        """Whether backwards are split from now on."""
        return self._order.splits

    @property
    def contributed(self) -> int:
        """The last round this stage has taken a snapshot for."""
        return self._boundary.contributed

    @property
    def merged(self) -> int:
        """The last round this stage has merged."""
        return self._boundary.merged

    @property
    def opened(self) -> int:
        """The newest round of which this stage knows that it is open."""
        return self._boundary.opened

    @property
    def drains(self) -> bool:
        """Whether the first stage has been told to drain, or any stage to finish the rounds after that."""
        return self._admission.stop_at is not None or self._boundary.last_update is not None

    @property
    def rests_at(self) -> int | None:
        """The updates that this stage has made, where it makes no more before something comes from elsewhere: it has
        drained, or waits at its lag limit. None where it may go on at any time."""
        version = self.version
        return version if self._boundary.holds(version) or self._boundary.last_update == version else None

    @property
    def newest_evaluation(self) -> int:
        """The newest evaluation of which this stage knows, 0 before the first."""
        return max(0, self._evaluations.newest)

    @property
    def staleness(self) -> dict[int, int]:
        """How many gradients have had each staleness, in updates, since the start."""
        return dict(self._flow.staleness)

    @property
    def group_staleness(self) -> tuple[int, ...]:
        """The staleness of each gradient in the update that is being accumulated, or run."""
        return tuple(self._flow.group_staleness)

    def handle(self, event: ev.Event, now_s: float) -> list[ins.Instruction]:
        """Take an event. Returns sends and reports in order, and last at most one instruction to compute."""
        if self.failure is not None:
            return []
        before = self.running
        try:
            if not self.started and type(event) is not ev.Started:
                raise IllegalEventError("Started comes first")
            instructions = _TAKE.get(type(event), StageMachine._other)(self, event)
            if self._ends:
                instructions += self._reports()
        except IllegalEventError as illegal:
            self.failure = f"stage {self.shape.index} of {self.shape.stages}: {event}: {illegal}"
            return [ins.Fail(self.failure)]
        running = self.running
        if running is None:
            if self.started:
                self.running = running = self._order.next()
                if running is not None:
                    instructions.append(running)
        elif running is before:
            return instructions  # the ledger knows
        state = self._idle_state() if running is None else KIND_OF_COMPUTE[type(running)]
        self.ledger.enter(state, now_s, running)
        return instructions

    def check(self) -> None:
        """Raise AssertionError where an invariant does not hold. Tests call it after each event."""
        if self.failure is None:
            self._flow.check()
            self._boundary.check(self.version)
            self._evaluations.check()

    # The frequent events, of which a simulation hands over millions a minute.

    def _forward_finished(self, event: ev.ForwardFinished) -> list[ins.Instruction]:
        running, micro_batch = self.running, event.micro_batch
        if type(running) is not ins.RunForward or running.micro_batch != micro_batch:
            raise IllegalEventError(f"running is {running}")
        self.running = None
        self._flow.forward_finished()
        return [] if self._is_last else [ins.SendActivation(micro_batch)]

    def _backward_finished(self, event: ev.BackwardFinished) -> list[ins.Instruction]:
        running, micro_batch = self.running, event.micro_batch
        if type(running) is not ins.RunBackward or running.micro_batch != micro_batch:
            raise IllegalEventError(f"running is {running}")
        self.running = None
        self._flow.backward_finished()
        return self._gradient_made(micro_batch, event.norm_sq)

    def _activation_arrived(self, event: ev.ActivationArrived) -> list[ins.Instruction]:
        if self._is_first:
            raise IllegalEventError("the first stage reads its own batches")
        last = self._boundary.last_update
        if last is not None and event.micro_batch >= last * self._update_every:
            raise IllegalEventError("the cluster has drained")
        self._flow.activation_arrived(event.micro_batch)
        return []

    def _gradient_arrived(self, event: ev.GradientArrived) -> list[ins.Instruction]:
        micro_batch, stamp = event.micro_batch, event.snapshot_round
        if self._is_last:
            raise IllegalEventError("the last stage makes its own gradients")
        self._flow.gradient_arrived(micro_batch)
        if self._clip or event.norm_sq is not None:
            self._norms.gradient_arrived(micro_batch, event.norm_sq)
        if stamp is not None:
            require(self.shape.ends_group(micro_batch), "a stamp belongs on the end of a group")
            self._boundary.stamp(stamp, micro_batch // self._update_every)
        return []

    def _other(self, event: ev.Event) -> list[ins.Instruction]:
        shape, flow = self.shape, self._flow
        match event:
            case ev.Started(version, merged, given):
                contributed = merged if given is None else given
                require(not self.started, "Started comes once")
                require(version >= 0 and merged >= 0, "versions and rounds are not negative")
                require(0 <= contributed - merged <= shape.max_lag, f"the lag is at most {shape.max_lag}")
                self.started = True
                self._begin(version, merged, contributed)
            case ev.InputGradientsFinished(micro_batch):
                self._finish_pass(ins.RunInputGradients, micro_batch)
                flow.input_gradients_finished()
                return self._gradient_made(micro_batch, None)
            case ev.WeightGradientsFinished(micro_batch):
                self._finish_pass(ins.RunWeightGradients, micro_batch)
                flow.weight_gradients_finished()
            case ev.UpdateFinished(update):
                if not isinstance(self.running, ins.RunUpdate) or self.running.update != update:
                    raise IllegalEventError(f"running is {self.running}")
                self.running = None
                flow.update_finished()
            case ev.RoundOpened(number):
                require(self._is_last, "only the last stage stamps rounds")
                self._boundary.round_opened(number)
            case ev.ContributionFinished(number):
                self._finish(ins.TakeSnapshot(number))
                self._boundary.snapshot_finished(number)
            case ev.MergeArrived(number):
                self._boundary.merge_arrived(number)
            case ev.MergeFinished(number):
                self._finish(ins.ApplyMerge(number))
                self._boundary.merge_finished(number)
                flow.merge_finished()
            case ev.GlobalNormArrived(update, global_norm_sq):
                require(not self._is_first, "the first stage makes the sum")
                self._norms.global_norm_arrived(update, global_norm_sq, flow.backwards // shape.update_every)
                if not self._is_last:
                    return [ins.SendGlobalNorm(update, global_norm_sq)]
            case ev.DriverSilent() | ev.DriverHeard():
                require(self._is_first, "only the first stage injects")
                self._admission.waits_for_driver = isinstance(event, ev.DriverSilent)
                if isinstance(event, ev.DriverHeard) and event.another:
                    self._drain_reported = False
            case ev.DrainRequested():
                self._ends = True
                require(self._is_first, "only the first stage drains")
                self._admission.drain(flow.forwards + isinstance(self.running, ins.RunForward))
            case ev.RoundsToFinish(up_to, updates):
                self._ends = True
                require(not self._is_first or self._drain_reported, "the cluster has not drained")
                require(flow.activations <= updates * shape.update_every, "more was injected than that")
                self._boundary.finish(up_to, updates, self.version)
            case ev.WindowChanged(window):
                require(self._is_first, "only the first stage has a window")
                self._admission.change_window(window)
            case ev.SplitChanged(split):
                require(shape.room > 0, "this stage has no room for split backwards")
                self._order.splits = split
            case ev.EvaluationForwardFinished(evaluation, batch):
                self._finish(ins.RunEvaluation(evaluation, batch))
                return self._evaluations.finished()
            case ev.EvaluationRequested() | ev.EvaluationArrived() | ev.EvaluationCredited():
                self._evaluations.take(event)
            case _:
                raise IllegalEventError("no stage knows such an event")
        return []

    def _finish(self, compute: ins.Compute) -> None:
        if self.running != compute:
            raise IllegalEventError(f"running is {self.running}")
        self.running = None

    def _finish_pass(self, kind: type[ins.Pass], micro_batch: int) -> None:
        running = self.running
        if not isinstance(running, kind) or running.micro_batch != micro_batch:
            raise IllegalEventError(f"running is {running}")
        self.running = None

    def _gradient_made(self, micro_batch: int, norm_sq: float | None) -> list[ins.Instruction]:
        """Return what to send once the gradient for the stage before is computed; `norm_sq` as in BackwardFinished."""
        stamp = None
        update, rest = divmod(micro_batch + 1, self._update_every)
        total = None
        if self._clip or norm_sq is not None:
            total = self._norms.backward_finished(micro_batch, norm_sq)
        if not rest:  # it ends a group
            if self._is_last:
                self._boundary.stamp_open_round(update - 1)
            stamp = self._boundary.stamp_of(update - 1)
        if not self._is_first:
            return [ins.SendGradient(micro_batch, stamp, total)]
        if total is not None and not self._is_last:
            return [ins.SendGlobalNorm(update - 1, total)]
        return []

    def _reports(self) -> list[ins.Instruction]:
        reports: list[ins.Instruction] = []
        stop_at = self._admission.stop_at
        if stop_at is not None and not self._drain_reported and self.version * self.shape.update_every == stop_at:
            self._drain_reported = True
            reports.append(ins.ReportDrained(stop_at, self.version))
        # Whoever hears it changes the weights, which an evaluation that is running reads.
        if self.running is None and (finished := self._boundary.newly_finished(self.version)) is not None:
            reports.append(ins.ReportRoundsFinished(finished))
        return reports

    def _idle_state(self) -> str:
        return self._order.waits_for() if self.started else "start"


_TAKE: dict[type[ev.Event], Callable[[StageMachine, Any], list[ins.Instruction]]] = {
    ev.ForwardFinished: StageMachine._forward_finished,
    ev.BackwardFinished: StageMachine._backward_finished,
    ev.ActivationArrived: StageMachine._activation_arrived,
    ev.GradientArrived: StageMachine._gradient_arrived,
}
