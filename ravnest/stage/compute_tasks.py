"""Turns an instruction to compute into a call of StageCompute, and paces the calls of an imitated node.

In: instructions of the stage machine, and the tensors that have arrived for them. Out: calls, which run in the compute
thread. `ComputeTasks` is used by whichever thread has the stage's lock, and decides nothing about order.

`Pacer` imitates a slower node: each piece of work ends when the node would have ended it. The node begins a piece as
soon as it has done the one before or, where the stage waited, when the wait was over. What this machine loses by
sleeping too long, or between two pieces, is made up by padding the next piece less, so the pace is exact in the long
run. At most the work of one micro-batch is ever made up. What is beyond that, or is not made up before the stage waits
again, counts as late. A stage of an imitated node is held to the node's memory, too.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, assert_never

from torch import Tensor

from cluster_planner import WorkTimes
from ravnest.free_memory import give_back_freed
from ravnest.pipeline import StageMachine
from ravnest.pipeline import instructions as ins
from ravnest.pipeline.time_ledger import Ledger
from ravnest.stage import messages as m
from ravnest.stage.boundary_tensors import StageCrossings
from ravnest.stage.compute import StageCompute
from ravnest.stage.rings import SegmentAverage, SegmentContribution
from ravnest.stage.rounds import StageRounds
from ravnest.stage.setup import StageSetup
from ravnest.stage.state_sending import StateFile
from ring_allreduce.transport import Lateness


class Pacer:
    """Imitates the pace of one stage's node."""

    def __init__(
        self,
        times: WorkTimes,
        evaluation_s: float,
        ledger: Ledger,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Arguments:
        times: what the node takes for each kind of work, in seconds.
        evaluation_s: what the node takes for one held-out batch.
        ledger: says whether the stage waited.
        sleep, now: the clock.
        """
        self._times = times
        self._evaluation_s = evaluation_s
        self._ledger = ledger
        self._sleep = sleep
        self._now = now
        self._most_owed_s = times.forward_s + times.backward_s
        self._waited_s = ledger.waited_s
        self._due_s = now()
        self._ended_s = self._due_s
        self.imitated_s = 0.0
        """The seconds of work that the node would have done since the first update. Before it a stage measures and
        tries things out."""
        self.late_s = 0.0
        """The seconds since then by which this machine was late and that it did not make up."""
        self._warm = False

    def paced(self, instruction: ins.Compute, work: Callable[[], Any]) -> Callable[[], Any]:
        """`work` at the node's pace. This is to be called when the stage begins the work, which is then run next."""
        waited_s, self._waited_s = self._waited_s, self._ledger.waited_s
        ready_s = self._now() if self._waited_s > waited_s else None
        return partial(self._run, instruction, work, ready_s)

    def _run(self, instruction: ins.Compute, work: Callable[[], Any], ready_s: float | None) -> Any:
        took_s = self.seconds(instruction)
        began_s = self._now()
        if ready_s is None:
            ready_s = self._due_s
        else:
            self._lose(self._ended_s - self._due_s)
        start_s = max(ready_s, began_s - self._most_owed_s)
        self._lose(start_s - ready_s)
        result = work()
        if took_s is None:  # the plan counts nothing for it: it takes what it takes here
            self._due_s = start_s + self._now() - began_s
        else:
            self._due_s = start_s + took_s
            left_s = self._due_s - self._now()
            if left_s > 0:
                self._sleep(left_s)
            self.imitated_s += took_s * self._warm
        self._ended_s = self._now()
        self._warm = self._warm or isinstance(instruction, ins.RunUpdate)
        return result

    def seconds(self, instruction: ins.Compute) -> float | None:
        """The seconds that the node takes for an instruction; None where the plan counts nothing for it."""
        times = self._times
        match instruction:
            case ins.RunForward():
                return times.forward_s
            case ins.RunBackward():
                return times.backward_s
            case ins.RunInputGradients():
                return times.input_gradients_s
            case ins.RunWeightGradients():
                return times.weight_gradients_s
            case ins.RunUpdate():
                return times.update_s
            case ins.RunEvaluation():
                return self._evaluation_s
            case ins.TakeSnapshot() | ins.ApplyMerge():
                return None
            case _:
                assert_never(instruction)

    def _lose(self, late_s: float) -> None:
        """Count `late_s` as late: it is not made up any more."""
        if self._warm:
            self.late_s += max(0.0, late_s)


Tensors = tuple[Tensor, ...]
Kind = Literal["activation", "gradient", "evaluation"]


class ComputeTasks:
    """The calls of one stage. It holds the tensors that have arrived until they are used."""

    def __init__(
        self,
        compute: StageCompute,
        rounds: StageRounds,
        machine: StageMachine,
        crossings: StageCrossings,
        setup: StageSetup,
        lateness: Lateness,
        now: Callable[[], float],
    ) -> None:
        """`lateness`: how late emulated links have delivered."""
        self._compute = compute
        self._crossings = crossings
        self._rounds = rounds
        self._machine = machine
        self._setup = setup
        self._lateness = lateness
        self._pacer: Pacer | None = None
        if setup.imitated.pace is not None:
            evaluation_s = setup.imitated.pace.forward_s * setup.evaluation.batch / setup.job.micro_batch
            self._pacer = Pacer(setup.imitated.pace, evaluation_s, machine.ledger, now=now)
        self._arrived: dict[tuple[Kind, tuple[int, ...]], Tensors] = {}
        self.saving: set[int] = set()
        """The rounds whose merge returns the stage's state, for a checkpoint."""

    def arrived(self, kind: Kind, number: tuple[int, ...], tensors: Tensors) -> None:
        """Keep tensors for the instruction of this number: of a micro-batch, or of an evaluation and its batch."""
        self._arrived[kind, number] = tensors
        waiting = sum(tensor.nbytes for several in self._arrived.values() for tensor in several)
        self._compute.peaks.saw("arrived", waiting + self._compute.tied.held_bytes)

    def late(self) -> m.ImitationLateness | None:
        """The report of how late this machine has been; None where nothing is imitated."""
        if self._pacer is None and not self._lateness.messages:
            return None
        late_s, imitated_s = (0.0, 0.0) if self._pacer is None else (self._pacer.late_s, self._pacer.imitated_s)
        links = self._lateness
        return m.ImitationLateness(
            late_s=late_s, imitated_s=imitated_s, links_late_s=links.late_s, messages=links.messages
        )

    def task(self, instruction: ins.Compute) -> Callable[[], Any]:
        """The call that carries out an instruction. The tensors that it needs are no longer held here."""
        call = self._plain(instruction)
        return call if self._pacer is None else self._pacer.paced(instruction, call)

    def _plain(self, instruction: ins.Compute) -> Callable[[], Any]:
        compute, crossings = self._compute, self._crossings
        match instruction:
            case ins.RunForward(micro_batch):
                received = self._take("activation", micro_batch)
                return lambda: crossings.forward(partial(compute.forward, micro_batch), received)
            case ins.RunBackward(micro_batch):
                received = self._take("gradient", micro_batch)
                ends = self._machine.shape.ends_group(micro_batch)
                return lambda: crossings.backward(partial(compute.backward, micro_batch, ends_group=ends), received)
            case ins.RunInputGradients(micro_batch):
                received = self._take("gradient", micro_batch)
                return lambda: crossings.backward(partial(compute.input_gradients, micro_batch), received)
            case ins.RunWeightGradients(micro_batch):
                return lambda: compute.weight_gradients(micro_batch)
            case ins.RunUpdate(_, norm_sq):
                staleness = self._machine.group_staleness
                return lambda: self._update(norm_sq, staleness)
            case ins.TakeSnapshot(number):
                return lambda: self._snapshot(number)
            case ins.ApplyMerge(number):
                averages, save = self._rounds.rings.take(number)
                if save:
                    self.saving.add(number)
                return lambda: self._merge(number, averages, save)
            case ins.RunEvaluation(evaluation, batch):
                received = self._take("evaluation", evaluation, batch)
                return lambda: compute.evaluate(evaluation, batch, received)
            case _:
                assert_never(instruction)

    def _update(self, norm_sq: float | None, staleness: Sequence[int]) -> tuple[float, tuple[float, ...]]:
        with self._rounds.sending.changing("update"):
            done = self._compute.update(norm_sq, staleness)
        if self._setup.imitated.memory is not None:
            self._compute.peaks.require_within(self._setup.imitated.memory, self._setup.name)
        return done

    def _snapshot(self, number: int) -> list[SegmentContribution]:
        """Take the progress for a round. Before its vectors are made, what has been freed goes back to the kernel: so
        a stage's process holds little more than its tensors, and a round takes longer than such pages cost."""
        give_back_freed()
        with self._rounds.still:
            return self._rounds.snapshot(number, self._compute.take_samples())

    def _merge(self, number: int, averages: Mapping[int, SegmentAverage], save: bool) -> list[StateFile]:
        """Move the anchor. Returns the files of the stage's state where it is to be saved in a checkpoint."""
        self._rounds.merge(number, averages)
        self._compute.weights_moved()
        return self._rounds.state_files() if save else []

    def _take(self, kind: Kind, *number: int) -> Tensors:
        return self._arrived.pop((kind, number), ())
