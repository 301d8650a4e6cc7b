"""The computations of a stage: forward, backward, update and evaluation.

In: tensors that arrived from neighbouring stages, and batches of data. Out: tensors to send, and changed weights.

StageMachine decides which micro-batch is computed when. The tensors of a micro-batch are held here until its backward.
Every call runs in the compute thread. A micro-batch's backward uses the weights that its forward used, since its graph
keeps them (design §6).
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from ravnest.errors import RunFailed
from ravnest.job.experts_table import answers_again, answers_kept, asks_experts
from ravnest.splitting import StageModule
from ravnest.splitting.program import check_inputs
from ravnest.stage.backward import Forgotten, MicroBatchGraph, Replayer, Root, scaled_backward, whole
from ravnest.stage.device import MixedPrecision, stage_device
from ravnest.stage.memory import ActivationBytes, Peaks
from ravnest.stage.setup import StageSetup
from ravnest.stage.split_backward import Splitter, WeightPass
from ravnest.stage.tied import TiedParameters
from ravnest.training.batches import BatchSource, Target, target_tensors, with_tensors
from ravnest.training.losses import Loss, Metric
from ravnest.training.named_measures import Measure
from ravnest.training.optimizer import clip_scale, learning_rate, norm_to_clip_by
from ravnest.training.sampler import derive_seed
from ravnest.training.weights import ParameterSet, VersionedWeights


@dataclass
class EvaluationSums:
    """The sums of the loss and of each metric over a held-out set, which the last stage makes."""

    loss: Measure = field(default_factory=lambda: Measure(0.0, 0))
    metrics: list[Measure] = field(default_factory=list)


class StageCompute:
    """One stage's module, weights and batches."""

    def __init__(
        self,
        setup: StageSetup,
        module: StageModule,
        weights: VersionedWeights,
        source: BatchSource | None,
        loss: Loss | None,
        metrics: Sequence[Metric],
    ) -> None:
        """`source`: the batches, which only a first or last stage reads. `loss`: None at any but a last stage."""
        self._setup = setup
        self.module = module
        self.weights = weights
        self._source = source
        self._loss = loss
        self._metrics = metrics
        self._alive: dict[int, MicroBatchGraph | Forgotten] = {}
        self.device = stage_device(setup.machine.device)
        self._mixed = MixedPrecision(setup.job.precision, setup.machine.device)
        forgets_all = setup.bounds.recomputes and not setup.units
        self._replayer = Replayer(setup.program, module) if forgets_all else None
        self._halfway: dict[int, tuple[WeightPass, ParameterSet]] = {}
        taught = "experts of others would be taught twice" if asks_experts(setup.program) else None
        self.splitter = Splitter(taught) if setup.shape.room else None
        """Splits backwards; None where they are never split."""
        self.tied = TiedParameters(setup.tied, weights, setup.job.update_every, setup.job.staleness_bound)
        self._losses: list[float] = []
        self._samples_since_snapshot = 0
        self._sums: dict[int, EvaluationSums] = {}
        self.peaks = Peaks()
        self._activations = ActivationBytes(lambda: (*module.parameters(), *module.buffers()), self.peaks)
        module.saved_again = self._activations.unit_again
        self._measure()

    @property
    def unfinished(self) -> list[int]:
        """The micro-batches in flight here: those whose gradient is not in the gradient of their group yet."""
        return [*self._alive, *self._halfway]

    def forward(self, micro_batch: int, received: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Run the forward of a micro-batch.

        received: the boundary tensors, in the order of `program.inputs`; empty at the first stage.
        Returns the outputs to send, in the order of `program.outputs`. The last stage returns none, and keeps the loss.
        Raises RunFailed where the loss is not finite.
        """
        setup = self._setup
        self._seed(micro_batch)
        inputs, target = self._inputs(received, micro_batch, self._train_batch)
        if setup.is_first:
            check_inputs(setup.program.inputs, inputs, f"micro-batch {micro_batch} of the training set")
        for tensor, spec in zip(inputs, setup.program.inputs, strict=True):
            if spec.needs_gradient:
                tensor.requires_grad_()
        self.tied.adopt(micro_batch)
        replayer, parameters = self._replayer, self.weights.current()
        buffers = {} if replayer is None else replayer.buffers()
        if replayer is not None:
            self._seed(micro_batch)  # as it will be the second time, when no batch is read
        answers: deque[Any] = deque()
        keeping = nullcontext() if replayer is None else answers_kept(setup.job.experts, answers)
        activations = self._activations.forward(
            micro_batch, inputs, forget=replayer is not None, passed=self.module.take_passed
        )
        with activations, keeping:
            outputs = self._run(inputs, target)
        if setup.is_last:
            self._losses.append(float(outputs[0].detach()))
            if not math.isfinite(self._losses[-1]):
                raise RunFailed(
                    f"the loss of micro-batch {micro_batch} of {setup.cluster} is {self._losses[-1]}: diverged"
                )
        if replayer is None:
            self._alive[micro_batch] = MicroBatchGraph(inputs, *self._root(outputs), parameters)
        else:
            self._alive[micro_batch] = Forgotten(inputs, target, parameters, buffers, answers)
        return () if setup.is_last else self.device.take([output.detach() for output in outputs])

    def backward(
        self, micro_batch: int, received: tuple[Tensor, ...], ends_group: bool
    ) -> tuple[tuple[Tensor, ...], float | None]:
        """Run the whole backward of a micro-batch.

        received: the gradients of the outputs. ends_group: whether this is the last micro-batch of an update.
        Returns the gradients to send, one for each input that needs one, and at the end of a group the squared norm of
        this stage's gradient where the job clips.
        """
        graph, received = self._graph(micro_batch), self.device.bring(received)
        if self.splitter is not None and not self.splitter.tried:
            self.splitter.try_out(graph, received)
        elif self._mixed.scale is not None:
            scaled_backward(graph, received, self._mixed.scale, partial(whole, keep=True))
        else:
            whole(graph, received)
        self._added(micro_batch, graph.parameters)
        if ends_group:
            self.peaks.saw("gradients", self.weights.gradient_bytes)  # before those of tied parameters leave
            self.tied.close_group(micro_batch)
        clips = self._setup.job.optimizer.clip_norm is not None
        return self._sent_back(graph), self.weights.norm_sq() if clips and ends_group else None

    def input_gradients(self, micro_batch: int, received: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], None]:
        """Run the first part of a split backward. Returns the gradients to send, and no norm, which is unknown yet."""
        assert self.splitter is not None
        graph = self._graph(micro_batch)
        rest = self.splitter.input_gradients(graph, self.device.bring(received))
        self._halfway[micro_batch] = rest, graph.parameters
        self._activations.split(micro_batch, rest.kept)
        return self._sent_back(graph), None

    def weight_gradients(self, micro_batch: int) -> None:
        """Run the second part of a split backward."""
        rest, parameters = self._halfway.pop(micro_batch)
        rest.run()
        self._added(micro_batch, parameters)
        self.device.settle()

    def update(self, norm_sq: float | None, staleness: Sequence[int] = ()) -> tuple[float, tuple[float, ...]]:
        """Make one optimizer step.

        norm_sq: the last known squared norm of the cluster's whole gradient; None where none is known.
        staleness: the staleness of each micro-batch's gradient, in updates.
        Returns the learning rate and, at the last stage, the losses of the update's micro-batches.
        """
        config = self._setup.job.optimizer
        lr = learning_rate(config.lr, config.schedule, self.weights.version, self._setup.bounds.total_updates)
        scale = None
        if config.clip_norm is not None:
            known = None if norm_sq is None else math.sqrt(norm_sq)
            scale = clip_scale(norm_to_clip_by(self.weights.norm_sq(), known), config.clip_norm)
        self.peaks.saw("gradients", self.weights.gradient_bytes)
        self.weights.step(lr, scale, staleness=fmean(staleness or (0,)), copy=bool(self._alive))
        self.tied.changed()
        self._measure()
        self.device.settle()
        U = self._setup.job.update_every  # noqa: N806 - the design's letter
        losses, self._losses = tuple(self._losses[:U]), self._losses[U:]
        return lr, losses

    @property
    def samples(self) -> int:
        """The samples that were trained on since the last snapshot."""
        return self._samples_since_snapshot

    def take_samples(self) -> int:
        """The samples that were trained on since the last call, which are the weight of a snapshot."""
        samples, self._samples_since_snapshot = self._samples_since_snapshot, 0
        return samples

    def begin_at(self, version: int) -> None:
        """The stage has made `version` updates, and goes on from there. To be called before it computes."""
        self.weights.version = version
        self.tied.begin_at(version)

    def weights_moved(self) -> None:
        """Lend tied parameters anew, and measure. To be called after a merge, or after the anchor was adopted."""
        self.tied.changed()
        self._measure()

    def evaluate(self, evaluation: int, batch: int, received: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Run the forward of a held-out batch in evaluation mode.

        Returns the outputs to send. The last stage returns none, and adds to the sums of the evaluation.
        """
        assert not self._setup.is_first or self._source is not None
        inputs, target = self._inputs(received, batch, self._held_out_batch)
        if self._setup.is_first:
            check_inputs(self._setup.program.inputs, inputs, f"batch {batch} of the held-out set")
        self.module.eval()
        self.tied.adopt()
        self.weights.current()  # what is sent may be a weight itself, which a merge then must not change in place
        with torch.no_grad():
            outputs = self._outputs(inputs)
            if not self._setup.is_last:
                return self.device.take(outputs)
            output = self.module.returned(outputs)
            sums = self._sums.setdefault(evaluation, EvaluationSums(metrics=[Measure(0.0, 0) for _ in self._metrics]))
            assert self._loss is not None
            sums.loss += self._loss.measure(output, target)
            sums.metrics = [
                total + metric.measure(output, target)
                for total, metric in zip(sums.metrics, self._metrics, strict=True)
            ]
        return ()

    def evaluation_sums(self, evaluation: int) -> EvaluationSums:
        """The sums of a finished evaluation. This call forgets them."""
        return self._sums.pop(evaluation)

    def _run(self, inputs: tuple[Tensor, ...], target: Target) -> tuple[Tensor, ...]:
        """Run the forward in training. Returns the module's outputs or, at the last stage, the mean loss alone."""
        self.module.train()
        outputs = self._outputs(inputs)
        if not self._setup.is_last:
            return outputs
        assert self._loss is not None
        return (self._loss.mean(self.module.returned(outputs), target),)

    def _outputs(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The outputs of the module in the dtypes that its program says, whatever precision they were computed in."""
        with self._mixed.forward():
            outputs: tuple[Tensor, ...] = self.module(*inputs)
        return tuple(out.to(spec.dtype) for out, spec in zip(outputs, self._setup.program.outputs, strict=True))

    def _graph(self, micro_batch: int) -> MicroBatchGraph:
        """The graph of a micro-batch, which is no longer in flight then. A graph that was forgotten is made anew."""
        alive = self._alive.pop(micro_batch)
        if isinstance(alive, MicroBatchGraph):
            return alive
        assert self._replayer is not None
        self._seed(micro_batch)
        again = answers_again(self._setup.job.experts, alive.answers)
        with self._replayer.as_it_was(alive, self.weights.current()), again:
            outputs = self._run(alive.inputs, alive.target)
        self._activations.replayed(micro_batch, alive.inputs)
        return MicroBatchGraph(alive.inputs, *self._root(outputs), alive.parameters)

    def _added(self, micro_batch: int, parameters: ParameterSet) -> None:
        """Account for a micro-batch whose gradient is in the gradient of its group now."""
        self.weights.collect(parameters)
        self._activations.backward(micro_batch)
        self._samples_since_snapshot += self._setup.job.micro_batch

    def _sent_back(self, graph: MicroBatchGraph) -> tuple[Tensor, ...]:
        gradients = [
            torch.zeros_like(tensor) if tensor.grad is None else tensor.grad.contiguous()
            for tensor, spec in zip(graph.inputs, self._setup.program.inputs, strict=True)
            if spec.needs_gradient
        ]
        return self.device.take(gradients)

    def _root(self, outputs: tuple[Tensor, ...]) -> tuple[Tensor | Root | None, tuple[int, ...]]:
        """The fields `root` and `fed` of a MicroBatchGraph, for `outputs` as `_run` returns them."""
        if self._setup.is_last:
            return outputs[0] / self._setup.job.update_every, ()
        pairs = zip(outputs, self._setup.program.outputs, strict=True)
        needing = [output for output, spec in pairs if spec.needs_gradient]
        fed = tuple(place for place, output in enumerate(needing) if output.requires_grad)
        return (Root([needing[place] for place in fed]) if fed else None), fed

    def _seed(self, micro_batch: int) -> None:
        setup = self._setup
        self.device.seed(derive_seed(setup.job.seed, setup.cluster, setup.index, micro_batch, "forward"))

    def _measure(self) -> None:
        """Measure memory after the weights have changed."""
        self._mixed.weights_changed()
        buffers = sum(buffer.nbytes for buffer in self.module.buffers())
        cast = self.weights.live_versions * self._activations.cast_bytes
        self.peaks.saw("weights", self.weights.weight_bytes + buffers + cast)
        self.peaks.saw("optimizer", self.weights.optimizer_bytes)

    def _train_batch(self, number: int) -> tuple[tuple[Tensor, ...], Target]:
        assert self._source is not None
        return self._source.train(number)

    def _held_out_batch(self, number: int) -> tuple[tuple[Tensor, ...], Target]:
        assert self._source is not None
        return self._source.held_out(number)

    def _inputs(
        self,
        received: tuple[Tensor, ...],
        number: int,
        read: Callable[[int], tuple[tuple[Tensor, ...], Target]],
    ) -> tuple[tuple[Tensor, ...], Target]:
        """The stage's inputs and, at the last stage, the target. Batches are read only where they are needed."""
        setup, device = self._setup, self.device
        if not (setup.is_first or setup.is_last):
            return device.bring(received), torch.empty(0)
        inputs, target = read(number)
        there = with_tensors(target, device.bring(target_tensors(target))) if setup.is_last else target
        return device.bring(inputs if setup.is_first else received), there
