"""Losses and metrics: the number that training minimises, and those that evaluation reports.

In: a job's choice of loss and metrics, and a batch's output and target: what the model returns for it, and what the
data set has as its target. Out: a mean to differentiate, and sums that add up correctly over several batches when the
last is short. The named ones are in named_measures.py; the others are the user's own.

A loss of the user's own is called with (output, target), both as they are: a tensor, or the dict, tuple or ModelOutput
of tensors that the model or the data set has. It returns one number in a tensor, the mean over the samples. It may be
a torch.nn.Module with parameters. These are trained with the last stage, of which the module is a part then.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ravnest.errors import InvalidInput
from ravnest.factories import FactoryConfig, FunctionConfig, call, resolve
from ravnest.splitting.output_structure import tensors_by_path
from ravnest.training.named_measures import (
    LOSSES,
    METRICS,
    Measure,
    MeasureConfig,
    Measured,
    check_name,
    chosen_output,
    mean_of,
    measure_of,
)


@dataclass(frozen=True)
class Loss:
    """A loss. `mean`: a 0-dim tensor to differentiate, the mean over the micro-batch. `measure`: for evaluation."""

    name: str
    mean: Callable[[Any, Any], Tensor]
    measure: Measured
    module: nn.Module | None = None
    """The user's module, where the loss is one."""


@dataclass(frozen=True)
class Metric:
    """A metric. `finish` turns the mean over the whole evaluation into the number that is shown."""

    name: str
    measure: Measured
    finish: Callable[[float], float]


Spec = str | MeasureConfig | FactoryConfig | FunctionConfig
"""How a job writes a loss or a metric: a known name, also with choices, a factory of a callable, or the callable."""


def build_loss(spec: Spec, search_dirs: Sequence[Path] = (), device: str = "cpu") -> Loss:
    """The loss of a job. A factory returns a callable (output, target) → 0-dim mean over the samples; a function is
    such a callable itself.

    Tensors of a module (weights of classes) are moved to `device`.
    Raises InvalidInput for an unknown name, and when first used for shapes that do not fit.
    """
    if isinstance(spec, FactoryConfig | FunctionConfig):
        made = _Made(spec, search_dirs, "loss", device)
        return Loss(spec.reference, made.mean, made.measure, made.module)
    config = _named(spec, LOSSES, "loss")
    return Loss(config.name, mean_of(config), measure_of(config, "loss"))


def build_metrics(specs: Sequence[Spec], search_dirs: Sequence[Path] = (), device: str = "cpu") -> tuple[Metric, ...]:
    """The metrics of a job, in order. Factories and functions are those of losses, and so are the errors."""
    return tuple(_build_metric(spec, search_dirs, device) for spec in specs)


def outputs_read(loss: Spec, metrics: Sequence[Spec]) -> Callable[[tuple[str, ...]], tuple[str, ...]] | None:
    """A function that chooses, from the paths of all tensors that a model returns, those that a job's loss and metrics
    take; None where one of these is the user's own, which is given the whole output.

    The function raises InvalidInput, at `loss` or `metrics`, where the choice is not clear.
    """
    if any(isinstance(spec, FactoryConfig | FunctionConfig) for spec in (loss, *metrics)):
        return None

    def select(names: tuple[str, ...]) -> tuple[str, ...]:
        chosen = [chosen_output(_named(loss, LOSSES, "loss"), names, "loss")]
        chosen += [chosen_output(_named(metric, METRICS, "metric"), names, "metrics") for metric in metrics]
        return tuple(dict.fromkeys(chosen))

    return select


def _named(spec: Spec, known: Sequence[str], kind: str) -> MeasureConfig:
    assert isinstance(spec, str | MeasureConfig)
    config = MeasureConfig(name=spec) if isinstance(spec, str) else spec
    check_name(config.name, known, kind)
    return config


def _build_metric(spec: Spec, search_dirs: Sequence[Path], device: str) -> Metric:
    if isinstance(spec, FactoryConfig | FunctionConfig):
        return Metric(spec.reference, _Made(spec, search_dirs, "metrics", device).measure, _as_is)
    config = _named(spec, METRICS, "metric")
    return Metric(config.name, measure_of(config, "metrics"), _as_is if config.name == "accuracy" else _exponential)


class _Made:
    """A loss or metric of the user's own."""

    def __init__(
        self, spec: FactoryConfig | FunctionConfig, search_dirs: Sequence[Path], key: str, device: str
    ) -> None:
        made: object
        if isinstance(spec, FunctionConfig):
            made = partial(resolve(spec.function, search_dirs, key=key), **spec.args)
        else:
            made = call(spec, search_dirs, key=key)
        if not callable(made):
            raise InvalidInput(f"{spec.reference!r} returned {type(made).__name__}, expected a callable", key=key)
        self._call: Callable[[Any, Any], object] = made
        self._name = spec.reference
        self._key = key
        self.module = made.to(device) if isinstance(made, nn.Module) else None

    def mean(self, output: Any, target: Any) -> Tensor:
        """The mean over the samples, in training."""
        return self._value(output, target, training=True)

    def measure(self, output: Any, target: Any) -> Measure:
        """The mean in evaluation, weighted by the samples."""
        samples = _samples(target, output)
        return Measure(float(self._value(output, target, training=False).detach()) * samples, samples)

    def _value(self, output: Any, target: Any, *, training: bool) -> Tensor:
        if self.module is not None and self.module.training != training:
            self.module.train(training)
        value = self._call(output, target)
        if not isinstance(value, Tensor) or value.numel() != 1:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise InvalidInput(f"{self._name!r} gave {shape}, expected one number in a tensor", key=self._key)
        return value.reshape(())


def _samples(target: Any, output: Any) -> int:
    """The number of samples of a batch: the length of the first tensor in its target or, without any, in its output."""
    tensors = (*tensors_by_path(target).values(), *tensors_by_path(output).values())
    return next((tensor.shape[0] for tensor in tensors if tensor.dim()), 1)


def _as_is(mean: float) -> float:
    return mean


def _exponential(mean: float) -> float:
    try:
        return math.exp(mean)
    except OverflowError:
        return math.inf
