"""One stage of a simulated run: it carries out what the stage machine of a real run decides, under the virtual clock.

A computation takes its stated duration times `slowness`, and ends later by as long as the node stalled meanwhile. A
node that stalls hears nothing: messages that come wait, in order, until it goes on. Messages that it had handed to its
uplink travel on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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

    def updated(self, stage: RunningStage) -> None:
        """A first stage has finished an update."""
        ...

    def contributed(self, stage: RunningStage, number: int) -> None:
        """A stage has taken its snapshot for the round `number`."""
        ...

    def drained(self, stage: RunningStage, updates: int) -> None:
        """A cluster's first stage has no micro-batch in flight any more, after so many updates."""
        ...


@dataclass(frozen=True)
class SimulatedWorld:
    """What all parts of one simulated run share."""

    clock: VirtualClock
    network: VirtualNetwork
    trace: VirtualTrace | None
    """None for a run that is not traced."""


@dataclass(frozen=True)
class StageSettings:
    """What stays the same of one stage throughout the run."""

    who: str
    """Its name, as in "c0.s1"."""
    cluster: str
    times: VirtualStage
    clip: bool
    """Whether updates wait for the norm of the gradients of all stages."""
    slowness: Slowness | None = None
    """None: every computation takes as long as stated."""


class RunningStage:
    """`tell` gives it an event; the instructions with which its machine answers are carried out at once."""

    def __init__(
        self,
        settings: StageSettings,
        tuned: TunedStage,
        observer: StageObserver,
        world: SimulatedWorld,
        *,
        joins: bool = False,
    ) -> None:
        """`joins`: what comes for it is kept until `begin`."""
        self.who = settings.who
        self.cluster = settings.cluster
        self.times = settings.times
        self.machine = tuned.machine
        self.finished_round = -1
        """The last round that it has merged."""
        self.finished_s = 0.0
        """When it had merged that round."""
        self.before: RunningStage | None = None
        self.after: RunningStage | None = None
        self._paths: dict[str, Path] = {}
        self.late_s = 0.0
        """By how many seconds in all its slowness has made computations longer than stated."""
        self.pace = 1.0
        """How many times as long as stated the node takes for them now, beside that."""
        self.stalled_s: dict[str, float] = {}
        """How long the node stalled, by the state of the ledger that the time was counted under."""
        self._tuned = tuned
        self._early: list[ev.Event] = []
        self._handle = self._keep if joins else tuned.handle
        self._when_finished = self._finished  # the bound method is made once, not for each computation
        self._passage = tuned.passage
        self._is_first = tuned.machine.shape.is_first
        self._clip = settings.clip
        self._slowness = settings.slowness
        self._observer = observer
        self._clock = world.clock
        self._network = world.network
        self._trace = world.trace
        self.dead = False
        """Whether it is gone for good."""
        self._held: list[tuple[Action, Any]] | None = None
        self._extend_s = 0.0

    def tell(self, event: ev.Event) -> None:
        """An event of the stage machine happens now, or waits until the node goes on."""
        if self._held is not None:
            self._held.append((self.tell, event))
            return
        for instruction in self._handle(event, self._clock.now_s):
            _CARRY_OUT[type(instruction)](self, instruction)

    def begin(self, started: ev.Started) -> None:
        """A stage that joined begins to train."""
        self._handle = self._tuned.handle
        self.tell(started)
        for event in self._early:
            self.tell(event)
        self._early.clear()

    def _keep(self, event: ev.Event, now_s: float, carried: Passage | None = None) -> list[ins.Instruction]:
        self._early.append(event)
        return []

    def receive(self, action: Action, argument: Any) -> bool:
        """Say whether the node hears a message that is not for its stage machine. Where it stalls, `action` is called
        with `argument` when it goes on.
        """
        if self._held is None:
            return True
        self._held.append((action, argument))
        return False

    def stall(self, for_s: float) -> bool:
        """The node stalls for `for_s` seconds from now on. Returns False, without effect, where it already stalls."""
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

    def die(self) -> None:
        """The node, or the stage's process, is gone: nothing happens here any more."""
        self._held = _Forgotten()
        self._handle = _nothing
        self._is_first = False
        self.dead = True

    def _go_on(self, _: None) -> None:
        if self.dead:
            return
        held, self._held = self._held or [], None
        for action, argument in held:
            action(argument)

    def _finished(self, event: ev.Event) -> None:
        """A computation has ended, unless the node has stalled meanwhile: then it ends later."""
        if self._extend_s:
            self._clock.after(self._extend_s, self._finished, event)
            self._extend_s = 0.0
            return
        for instruction in self._handle(event, self._clock.now_s):
            _CARRY_OUT[type(instruction)](self, instruction)
        if self._is_first and type(event) is ev.UpdateFinished:
            self._observer.updated(self)

    def _gradient_came(self, told: tuple[ev.GradientArrived, Passage]) -> None:
        if self._held is not None:
            self._held.append((self._gradient_came, told))
            return
        for instruction in self._handle(told[0], self._clock.now_s, told[1]):
            _CARRY_OUT[type(instruction)](self, instruction)

    def _compute(self, instruction: ins.Compute, seconds: float, finished: ev.Event) -> None:
        seconds *= self.pace
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
        self._compute(instruction, self.times.snapshot_s, ev.ContributionFinished(instruction.round))
        self._clock.after(self.times.snapshot_s, self._contribute, instruction.round)

    def _contribute(self, number: int) -> None:
        if self.receive(self._contribute, number):
            self._observer.contributed(self, number)

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
        self._observer.drained(self, instruction.updates)

    def _report_rounds_finished(self, instruction: ins.ReportRoundsFinished) -> None:
        if self._trace is not None:
            self._trace.reported(self.who, instruction)
        self.finished_round, self.finished_s = instruction.up_to, self._clock.now_s

    def _fail(self, instruction: ins.Fail) -> None:
        raise RunFailed(f"{self.who}: {instruction.reason}")

    def _refuse(self, instruction: ins.Instruction) -> None:
        raise RunFailed(f"{self.who}: nobody asked for an evaluation: {instruction}")


class _Forgotten(list[tuple[Action, Any]]):
    """What a dead node would hear is kept nowhere."""

    def append(self, _: tuple[Action, Any], /) -> None:
        """Forget it."""


def _nothing(event: ev.Event, now_s: float, carried: Passage | None = None) -> list[ins.Instruction]:
    return []


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
