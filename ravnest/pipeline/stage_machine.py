"""The stage machine: what one stage of one cluster does next, given what has happened. Sans-I/O.

Decides the order of forward, backward, update, snapshot, merge and evaluation on one stage, and what it
sends. The same machine runs under the real runtime and under the virtual clock. It knows numbers only: no
tensor, socket, peer name or clock (`now_s` only feeds the ledger).

Compute is one thing at a time. When idle, the first of these that is ready:

    1. snapshot or merge, at an update boundary        (boundary.py: rounds, lag)
    2. update, once its group is complete              (norms.py: what it is clipped by), the weight gradients that
       still wait for it first
    3. backward of the oldest micro-batch, but alternating with 5 when both are ready
    4. evaluation forward, alternating with 5 when both are ready   (evaluations.py)
    5. forward of the next micro-batch                 (admission.py: bounded staleness, with its proof)
    6. weight gradients of the oldest micro-batch whose backward was split

3 alternates since micro-batches that travel in a bunch would else do so for ever: a stage that serves the backwards of
a bunch first sends its forwards on in a bunch again, and idles while that travels (docs/decisions.md).

A split backward computes what it sends back first (3), and the rest when nothing else is ready (6), or before what
needs it done: the update, a whole backward, what memory would not hold beside it. Where gradients are clipped, the end
of a group is not split, since the gradient that is sent carries the group's norm.

A synchronous schedule (1f1b, gpipe: cluster_planner/schedules.py) says whether 3 or 5 is next, and waits for it.

Update g consists of the micro-batches [g·U, (g+1)·U), in order, at every stage. Sends are issued as soon as
what they need is computed. Design §6 and §7.
"""

from __future__ import annotations

from ravnest.pipeline import events as ev
from ravnest.pipeline import instructions as ins
from ravnest.pipeline.admission import Admission
from ravnest.pipeline.boundary import Boundary
from ravnest.pipeline.evaluations import Evaluations
from ravnest.pipeline.flow import Flow
from ravnest.pipeline.ledger import KIND_OF_COMPUTE, Ledger
from ravnest.pipeline.norms import Norms
from ravnest.pipeline.shape import IllegalEventError, StageShape, require


class StageMachine:
    """`handle` takes each event in the order in which it happened. An event that cannot be is answered by one
    `Fail`, and every later event by nothing: the state is no longer trusted."""

    def __init__(self, shape: StageShape) -> None:
        self.shape = shape
        self._is_first, self._is_last = shape.is_first, shape.is_last
        self._update_every = shape.update_every
        self.ledger = Ledger()
        self.running: ins.Compute | None = None
        self.failure: str | None = None
        self.started = False
        self.splits = False
        """Whether backwards are split from now on."""
        self._begin(0, 0)

    def _begin(self, version: int, number: int) -> None:
        self._flow = Flow(self.shape, version)
        self._admission = Admission(self.shape)
        self._norms = Norms(self.shape, version)
        self._boundary = Boundary(self.shape, number)
        self._evaluations = Evaluations(self.shape)
        self._evaluated_last = self._went_back = False
        self._drain_reported = self._ends = False

    # What has come of it, for metrics.

    @property
    def version(self) -> int:
        return self._flow.version

    @property
    def in_flight(self) -> int:
        return self._flow.in_flight

    @property
    def contributed(self) -> int:
        """The last round this stage has taken a snapshot for."""
        return self._boundary.contributed

    @property
    def merged(self) -> int:
        """The last round this stage has merged."""
        return self._boundary.merged

    @property
    def staleness(self) -> dict[int, int]:
        """How many gradients had which staleness, in updates, since the start."""
        return dict(self._flow.staleness)

    @property
    def group_staleness(self) -> tuple[int, ...]:
        """The staleness of each gradient in the update that is being accumulated, or run."""
        return tuple(self._flow.group_staleness)

    def handle(self, event: ev.Event, now_s: float) -> list[ins.Instruction]:
        """What to do now: sends and reports in order, then at most one compute instruction, last."""
        if self.failure is not None:
            return []
        before = self.running
        try:
            instructions = self._take(event)
            if self._ends:
                instructions += self._reports()
        except IllegalEventError as illegal:
            self.failure = f"stage {self.shape.index} of {self.shape.stages}: {event}: {illegal}"
            return [ins.Fail(self.failure)]
        running = self.running
        if running is None:
            if self.started:
                self.running = running = self._choose()
                if running is not None:
                    instructions.append(running)
        elif running is before:
            return instructions  # the ledger knows
        self.ledger.enter(self._state() if running is None else KIND_OF_COMPUTE[type(running)], now_s, running)
        return instructions

    def check(self) -> None:
        """Raise AssertionError if an invariant does not hold. For tests: call it after each event."""
        if self.failure is None:
            self._flow.check()
            self._boundary.check(self.version)
            self._evaluations.check()

    def _take(self, event: ev.Event) -> list[ins.Instruction]:
        shape, flow = self.shape, self._flow
        if not self.started and not isinstance(event, ev.Started):
            raise IllegalEventError("Started comes first")
        match event:  # the frequent ones first
            case ev.ForwardFinished(micro_batch):
                self._finish_pass(ins.RunForward, micro_batch)
                flow.forward_finished()
                if not self._is_last:
                    return [ins.SendActivation(micro_batch)]
            case ev.BackwardFinished(micro_batch, norm_sq):
                self._finish_pass(ins.RunBackward, micro_batch)
                flow.backward_finished()
                return self._gradient_made(micro_batch, norm_sq)
            case ev.ActivationArrived(micro_batch):
                require(not self._is_first, "the first stage reads its own batches")
                last = self._boundary.last_update
                require(last is None or micro_batch < last * self._update_every, "the cluster has drained")
                flow.activation_arrived(micro_batch)
            case ev.GradientArrived(micro_batch, stamp, norm_sq):
                require(not self._is_last, "the last stage makes its own gradients")
                flow.gradient_arrived(micro_batch)
                self._norms.gradient_arrived(micro_batch, norm_sq)
                if stamp is not None:
                    require(shape.ends_group(micro_batch), "a stamp belongs on the end of a group")
                    self._boundary.stamp(stamp, micro_batch // shape.update_every)
            case ev.Started(version, number):
                require(not self.started, "Started comes once")
                require(version >= 0 and number >= 0, "versions and rounds are not negative")
                self.started = True
                self._begin(version, number)
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
            case ev.SnapshotFinished(number):
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
                self.splits = split
            case ev.EvaluationForwardFinished(evaluation, batch):
                self._finish(ins.RunEvaluation(evaluation, batch))
                return self._evaluations.finished()
            case _:
                self._evaluations.take(event)
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
        """What goes back to the stage before is computed; `norm_sq` as in BackwardFinished."""
        stamp = None
        update, rest = divmod(micro_batch + 1, self._update_every)
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

    def _choose(self) -> ins.Compute | None:
        flow, boundary = self._flow, self._boundary
        held = False
        if not boundary.is_quiet:
            step = boundary.next_step(flow.version, flow.untouched)
            if step is not None:
                return step
            held = boundary.holds(flow.version)
        forward = False
        if not held:
            if flow.update_due:
                if flow.pending:
                    return ins.RunWeightGradients(flow.added)
                if self._norms.is_ready(flow.version):
                    return ins.RunUpdate(flow.version, self._norms.known_norm_sq)
            else:
                if flow.may_forward:
                    forward = self._refusal() is None if self._is_first else flow.activations > flow.forwards
                if flow.gradients > flow.backwards and not (forward and self._went_back) and flow.may_backward:
                    return self._backward()
        if self._evaluations.is_ready and not (forward and self._evaluated_last):
            self._evaluated_last, self._went_back = True, False
            return self._evaluations.start()
        if forward and (flow.backwards == flow.added or flow.has_room_to_forward):
            self._evaluated_last = self._went_back = False
            flow.forward_started()
            return ins.RunForward(flow.forwards)
        return ins.RunWeightGradients(flow.added) if flow.backwards != flow.added else None

    def _backward(self) -> ins.Compute:
        """Of the oldest micro-batch that is ready, or what has to come before it."""
        flow, shape = self._flow, self.shape
        splits = self.splits and not (shape.clip and shape.ends_group(flow.backwards)) and flow.has_room_to_split
        if flow.pending and not splits:
            return ins.RunWeightGradients(flow.added)
        self._went_back = True
        return ins.RunInputGradients(flow.backwards) if splits else ins.RunBackward(flow.backwards)

    def _refusal(self) -> str | None:
        return self._admission.refusal(self._flow.forwards, self.in_flight, self.version)

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

    def _state(self) -> str:
        """What the ledger is to call the time from now on, in which nothing is computed."""
        if not self.started:
            return "start"
        if self._boundary.holds(self.version):
            return "lag"
        if self._flow.update_due:
            return "norm"
        if self._boundary.last_update == self.version:
            return "drain"
        if self._is_first and self._flow.may_forward:
            return self._refusal() or "input"
        return "input"
