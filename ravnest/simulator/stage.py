"""One stage of a virtual run: its machine, how long it computes, and what it sends.

Decides when a computation ends: after its stated duration times `slowness`, and later by as long as the node stood
still meanwhile. A node that stands still hears nothing: what comes waits, in order, until it goes on. What it had
handed to its uplink travels on. What a stage does next is decided by its machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ravnest.errors import RunFailed
from ravnest.pipeline import events as ev
from ravnest.pipeline import instructions as ins
from ravnest.pipeline.time_ledger import KIND_OF_COMPUTE
from ravnest.pipeline.tuned_stage import Passage, TunedStage
from ravnest.simulator.clock import Action, VirtualClock
from ravnest.simulator.fleet import VirtualStage
from ravnest.simulator.network import Path, VirtualNetwork
from ravnest.simulator.trace import VirtualTrace
from ring_allreduce.transport import Lane

Slowness = Callable[[], float]
"""By which factor the next computation takes longer than stated."""


class StageObserver(Protocol):
    """What a stage tells the run."""

    def updated(self, stage: RunningStage) -> None: ...
    def contributed(self, stage: RunningStage, number: int) -> None: ...
    def drained(self, stage: RunningStage, updates: int) -> None: ...


class RunningStage:
    """`tell` it what happens; its machine's instructions are carried out at once."""

    def __init__(
        self,
        who: str,
        cluster: str,
        times: VirtualStage,
        tuned: TunedStage,
        around: StageObserver,
        clock: VirtualClock,
        network: VirtualNetwork,
        trace: VirtualTrace | None,
        slowness: Slowness | None,
        clip: bool,
    ) -> None:
        self.who = who
        self.cluster = cluster
        self.times = times
        self.machine = tuned.machine
        self.finished_round = -1
        self.finished_s = 0.0
        """When it had merged the last round."""
        self.before: RunningStage | None = None
        self.after: RunningStage | None = None
        self._paths: dict[str, Path] = {}
        self.late_s = 0.0
        """How much longer than stated it computed, in all, for its slowness."""
        self.stalled_s: dict[str, float] = {}
        """How long the node stood still, by what the ledger took the time for."""
        self._handle = tuned.handle
        self._when_finished = self._finished  # made once, not for each computation
        self._passage = tuned.passage
        self._is_first = tuned.machine.shape.is_first
        self._clip = clip
        self._around = around
        self._clock = clock
        self._network = network
        self._trace = trace
        self._slowness = slowness
        self._held: list[tuple[Action, Any]] | None = None
        self._extend_s = 0.0

    def tell(self, event: ev.Event) -> None:
        if self._held is not None:
            self._held.append((self.tell, event))
            return
        for instruction in self._handle(event, self._clock.now_s):
            _CARRY_OUT[type(instruction)](self, instruction)

    def receive(self, action: Action, argument: Any) -> bool:
        """Whether the node hears a message that is not for its stage machine; else `action` comes again later."""
        if self._held is None:
            return True
        self._held.append((action, argument))
        return False

    def stall(self, for_s: float) -> bool:
        """The node stands still, beginning now; False, without effect, where it already does."""
        if self._held is not None:
            return False
        self._held = []
        running = self.machine.running
        state = self.machine.ledger.state if running is None else KIND_OF_COMPUTE[type(running)]
        if running is not None:
            self._extend_s += for_s
        self.stalled_s[state] = self.stalled_s.get(state, 0.0) + for_s
        self._clock.after(for_s, self._go_on, None)
        return True

    def _go_on(self, _: None) -> None:
        held, self._held = self._held or [], None
        for action, argument in held:
            action(argument)

    def _finished(self, event: ev.Event) -> None:
        """A computation has ended, if the node did not stand still meanwhile."""
        if self._extend_s:
            self._clock.after(self._extend_s, self._finished, event)
            self._extend_s = 0.0
            return
        for instruction in self._handle(event, self._clock.now_s):
            _CARRY_OUT[type(instruction)](self, instruction)
        if self._is_first and type(event) is ev.UpdateFinished:
            self._around.updated(self)

    def _gradient_came(self, told: tuple[ev.GradientArrived, Passage]) -> None:
        if self._held is not None:
            self._held.append((self._gradient_came, told))
            return
        for instruction in self._handle(told[0], self._clock.now_s, told[1]):
            _CARRY_OUT[type(instruction)](self, instruction)

    def _compute(self, instruction: ins.Compute, seconds: float, finished: ev.Event) -> None:
        if self._slowness is not None:
            stated_s = seconds
            seconds *= self._slowness()
            self.late_s += seconds - stated_s
        if self._trace is not None:
            self._trace.computed(self.who, instruction, seconds)
        self._clock.after(seconds, self._when_finished, finished)

    def _send(self, to: RunningStage | None, instruction: ins.Send, n_bytes: int, action: Action, told: Any) -> None:
        if to is None:
            raise RunFailed(f"{self.who}: there is nobody to send to: {instruction}")
        path = self._paths.get(to.who)
        if path is None:
            path = self._paths[to.who] = self._network.path(self.who, to.who)
        if self._trace is not None:
            action, told = self._trace.sent(self.who, instruction, action, told)
        path.transmit(Lane.PIPELINE, n_bytes, action, told)

    def _run_forward(self, instruction: ins.RunForward) -> None:
        self._compute(instruction, self.times.forward_s, ev.ForwardFinished(instruction.micro_batch))

    def _run_backward(self, instruction: ins.RunBackward) -> None:
        micro_batch = instruction.micro_batch
        norm_sq = 1.0 if self._clip and self.machine.shape.ends_group(micro_batch) else None
        self._compute(instruction, self.times.backward_s, ev.BackwardFinished(micro_batch, norm_sq))

    def _run_input_gradients(self, instruction: ins.RunInputGradients) -> None:
        done = ev.InputGradientsFinished(instruction.micro_batch)
        self._compute(instruction, self.times.input_gradients_s, done)

    def _run_weight_gradients(self, instruction: ins.RunWeightGradients) -> None:
        done = ev.WeightGradientsFinished(instruction.micro_batch)
        self._compute(instruction, self.times.weight_gradients_s, done)

    def _run_update(self, instruction: ins.RunUpdate) -> None:
        self._compute(instruction, self.times.update_s, ev.UpdateFinished(instruction.update))

    def _take_snapshot(self, instruction: ins.TakeSnapshot) -> None:
        self._compute(instruction, self.times.snapshot_s, ev.SnapshotFinished(instruction.round))
        self._clock.after(self.times.snapshot_s, self._contribute, instruction.round)

    def _contribute(self, number: int) -> None:
        if self.receive(self._contribute, number):
            self._around.contributed(self, number)

    def _apply_merge(self, instruction: ins.ApplyMerge) -> None:
        self._compute(instruction, self.times.merge_s, ev.MergeFinished(instruction.round))

    def _send_activation(self, instruction: ins.SendActivation) -> None:
        to = self.after
        if to is not None:
            told = ev.ActivationArrived(instruction.micro_batch)
            self._send(to, instruction, self.times.activation_bytes, to.tell, told)

    def _send_gradient(self, instruction: ins.SendGradient) -> None:
        to, micro_batch = self.before, instruction.micro_batch
        if to is not None:
            event = ev.GradientArrived(micro_batch, instruction.snapshot_round, instruction.norm_sq)
            told = (event, self._passage(micro_batch))
            self._send(to, instruction, self.times.gradient_bytes, to._gradient_came, told)

    def _send_global_norm(self, instruction: ins.SendGlobalNorm) -> None:
        to = self.after
        if to is not None:
            self._send(to, instruction, 0, to.tell, ev.GlobalNormArrived(instruction.update, instruction.norm_sq))

    def _report_drained(self, instruction: ins.ReportDrained) -> None:
        if self._trace is not None:
            self._trace.reported(self.who, instruction)
        self._around.drained(self, instruction.updates)

    def _report_rounds_finished(self, instruction: ins.ReportRoundsFinished) -> None:
        if self._trace is not None:
            self._trace.reported(self.who, instruction)
        self.finished_round, self.finished_s = instruction.up_to, self._clock.now_s

    def _fail(self, instruction: ins.Fail) -> None:
        raise RunFailed(f"{self.who}: {instruction.reason}")

    def _refuse(self, instruction: ins.Instruction) -> None:
        raise RunFailed(f"{self.who}: nobody asked for an evaluation: {instruction}")


_CARRY_OUT: dict[type[ins.Instruction], Callable[[RunningStage, Any], None]] = {
    ins.RunForward: RunningStage._run_forward,
    ins.RunBackward: RunningStage._run_backward,
    ins.RunInputGradients: RunningStage._run_input_gradients,
    ins.RunWeightGradients: RunningStage._run_weight_gradients,
    ins.RunUpdate: RunningStage._run_update,
    ins.TakeSnapshot: RunningStage._take_snapshot,
    ins.ApplyMerge: RunningStage._apply_merge,
    ins.RunEvaluation: RunningStage._refuse,
    ins.SendActivation: RunningStage._send_activation,
    ins.SendGradient: RunningStage._send_gradient,
    ins.SendGlobalNorm: RunningStage._send_global_norm,
    ins.SendEvaluation: RunningStage._refuse,
    ins.CreditEvaluation: RunningStage._refuse,
    ins.ReportEvaluation: RunningStage._refuse,
    ins.ReportDrained: RunningStage._report_drained,
    ins.ReportRoundsFinished: RunningStage._report_rounds_finished,
    ins.Fail: RunningStage._fail,
}
