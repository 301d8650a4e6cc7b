"""A model over a set, span after span, in one process: what a pipeline's evaluation computes, without the pipeline.

Holds the weights of one span at a time, and between two spans the activations of the batches it was given. Decides
nothing about which spans and how many batches. Knows no socket.
"""

import gc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ravnest.factories import user_code
from ravnest.splitting import StageModule, StageProgram
from ravnest.stage.device import HostDevice, Tensors
from ravnest.stage.mixed_precision import MixedPrecision
from ravnest.training.batches import fetch, in_order
from ravnest.training.losses import Loss, Measure, Metric
from ravnest.training.precision import Precision


class SpanEvaluation:
    """Adds up the job's measures over batches that come in groups."""

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        dataset: Any,
        loss: Loss,
        metrics: Sequence[Metric],
        *,
        device: HostDevice,
        device_name: str,
        precision: Precision = "float32",
    ) -> None:
        """`weights`: the whole model's by original name, read when they are asked for. `device_name`: torch's of
        `device`. Only a caller's own data and measures raise: InvalidInput."""
        self._weights = weights
        self._dataset = dataset
        self._metrics = metrics
        self._measures = [loss.measure, *(metric.measure for metric in metrics)]
        self._names = [("loss", loss.name), *(("metrics", metric.name) for metric in metrics)]
        self._sums = [Measure(0.0, 0) for _ in self._measures]
        self._device = device
        self._device_name = device_name
        self._precision = precision

    @property
    def loss(self) -> float:
        """The mean so far."""
        return self._sums[0].mean

    @property
    def metrics(self) -> dict[str, float]:
        """Those so far, by name."""
        return {
            metric.name: metric.finish(sums.mean) for metric, sums in zip(self._metrics, self._sums[1:], strict=True)
        }

    @torch.no_grad()
    def add(self, programs: Sequence[StageProgram], batches: Sequence[range], done: Callable[[], None]) -> None:
        """Take `batches` (indices into the dataset) through all spans. `done` is called for each batch in each span."""
        carried: list[Tensors] = [()] * len(batches)
        for program in programs:
            self._through(program, batches, carried, done, ends=(program is programs[0], program is programs[-1]))
            gc.collect()  # a module with a parameter of its own refers to itself

    def _through(
        self,
        program: StageProgram,
        batches: Sequence[range],
        carried: list[Tensors],
        done: Callable[[], None],
        ends: tuple[bool, bool],
    ) -> None:
        """Through one span, whose weights are gone when this returns. `carried`, each batch's tensors, is replaced."""
        is_first, is_last = ends
        module, mixed = self._built(program), MixedPrecision(self._precision, self._device_name)
        for place, batch in enumerate(batches):
            given, target = carried[place], torch.empty(0)
            if is_first or is_last:
                inputs, target = fetch(self._dataset, batch)
                given = in_order(inputs, [spec.name for spec in program.inputs]) if is_first else given
            with mixed.forward():
                outputs = module(*self._device.bring(given))
            outputs = tuple(out.to(spec.dtype) for out, spec in zip(outputs, program.outputs, strict=True))
            if is_last:
                self._measure(outputs[0], *self._device.bring([target]))
            carried[place] = () if is_last else self._device.take(outputs)
            done()
        mixed.weights_changed()

    def _built(self, program: StageProgram) -> StageModule:
        # Copies: what is read lies in a mapped file, and a model may write to its buffers even in evaluation.
        own = {spec.name: self._weights[spec.name].to(spec.dtype, copy=True) for spec in program.weight_specs}
        return StageModule(program, own, self._device_name, copy=False).eval()

    def _measure(self, output: Tensor, target: Tensor) -> None:
        for place, (measure, (key, name)) in enumerate(zip(self._measures, self._names, strict=True)):
            with user_code(f"{name!r}, on an output of {tuple(output.shape)},", key=key):
                self._sums[place] += measure(output, target)
