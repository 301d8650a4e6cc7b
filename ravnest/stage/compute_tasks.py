"""What an instruction to compute means: a call of StageCompute, with the tensors that have arrived for it; of an
imitated node, at the node's pace and within its memory.

Decides nothing about order. Used by whoever has the stage's lock; the calls that it makes run in the compute thread.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, assert_never

from torch import Tensor

from ravnest.pipeline import StageMachine
from ravnest.pipeline import instructions as ins
from ravnest.stage import messages as m
from ravnest.stage.boundary_tensors import StageCrossings
from ravnest.stage.compute import StageCompute
from ravnest.stage.pace import Pacer
from ravnest.stage.rounds import SegmentAverage, StageRounds, StatePiece
from ravnest.stage.setup import StageSetup
from ring_allreduce.transport import Lateness

Tensors = tuple[Tensor, ...]
Kind = Literal["activation", "gradient", "evaluation"]


class ComputeTasks:
    """One stage's. Holds what has arrived until it is used."""

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
        """`lateness`: of emulated links."""
        self._compute = compute
        self._crossings = crossings
        self._rounds = rounds
        self._machine = machine
        self._setup = setup
        self._lateness = lateness
        self._pacer: Pacer | None = None
        if setup.pace is not None:
            evaluation_s = setup.pace.forward_s * setup.evaluation_batch / setup.job.micro_batch
            self._pacer = Pacer(setup.pace, evaluation_s, machine.ledger, now=now)
        self._arrived: dict[tuple[Kind, tuple[int, ...]], Tensors] = {}
        self.saving: set[int] = set()
        """Rounds whose merge gives the stage's state, for a checkpoint."""

    def arrived(self, kind: Kind, number: tuple[int, ...], tensors: Tensors) -> None:
        self._arrived[kind, number] = tensors
        waiting = sum(tensor.nbytes for several in self._arrived.values() for tensor in several)
        self._compute.peaks.saw("arrived", waiting + self._compute.tied.held_bytes)

    def late(self) -> m.ImitationLateness | None:
        """How late this machine has been; None where nothing is imitated."""
        if self._pacer is None and not self._lateness.messages:
            return None
        late_s, imitated_s = (0.0, 0.0) if self._pacer is None else (self._pacer.late_s, self._pacer.imitated_s)
        links = self._lateness
        return m.ImitationLateness(
            late_s=late_s, imitated_s=imitated_s, links_late_s=links.late_s, messages=links.messages
        )

    def task(self, instruction: ins.Compute) -> Callable[[], Any]:
        """The call; what it needs is forgotten here."""
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
                return lambda: self._rounds.snapshot(number, compute.take_samples())
            case ins.ApplyMerge(number):
                averages, save = self._rounds.take(number)
                if save:
                    self.saving.add(number)
                return lambda: self._merge(number, averages, save)
            case ins.RunEvaluation(evaluation, batch):
                received = self._take("evaluation", evaluation, batch)
                return lambda: compute.evaluate(evaluation, batch, received)
            case _:
                assert_never(instruction)

    def _update(self, norm_sq: float | None, staleness: Sequence[int]) -> tuple[float, tuple[float, ...]]:
        done = self._compute.update(norm_sq, staleness)
        if self._setup.memory is not None:
            self._compute.peaks.require_within(self._setup.memory, self._setup.name)
        return done

    def _merge(self, number: int, averages: Mapping[int, SegmentAverage], save: bool) -> list[StatePiece]:
        """Move the anchor. Returns copies of the stage's state for the checkpoint where it is to be saved."""
        self._rounds.merge(number, averages)
        self._compute.weights_moved()
        return self._rounds.saved() if save else []

    def _take(self, kind: Kind, *number: int) -> Tensors:
        return self._arrived.pop((kind, number), ())
