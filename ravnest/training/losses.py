"""Losses and metrics: the number that training minimises, and those that evaluation reports.

In: a job's choice of loss and metrics, and a batch's output and target. Out: a mean to differentiate, and sums that add
up correctly over several batches when the last is short. Shapes: B samples, T positions, C classes or V words.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from ravnest.errors import InvalidInput
from ravnest.factories import FactoryConfig, FunctionConfig, call, resolve

LOSSES = ("cross_entropy", "mse")
METRICS = ("accuracy", "perplexity")
IGNORED_TARGET = -100
"""A class target of this value counts nowhere (torch's own default)."""


@dataclass(frozen=True)
class Measure:
    """A sum over `count` samples or targets. The measures of batches add up to the measure of all of them."""

    total: float
    count: int

    def __add__(self, other: "Measure") -> "Measure":
        return Measure(self.total + other.total, self.count + other.count)

    @property
    def mean(self) -> float:
        """The mean; NaN when nothing was counted."""
        return self.total / self.count if self.count else math.nan


@dataclass(frozen=True)
class Loss:
    """A loss. `mean`: a 0-dim tensor to differentiate, the mean over the micro-batch. `measure`: for evaluation."""

    name: str
    mean: Callable[[Tensor, Tensor], Tensor]
    measure: Callable[[Tensor, Tensor], Measure]


@dataclass(frozen=True)
class Metric:
    """A metric. `finish` turns the mean over the whole evaluation into the number that is shown."""

    name: str
    measure: Callable[[Tensor, Tensor], Measure]
    finish: Callable[[float], float]


Spec = str | FactoryConfig | FunctionConfig
"""How a job writes a loss or a metric: a known name, a factory of a callable, or the callable itself."""


def build_loss(spec: Spec, search_dirs: Sequence[Path] = (), device: str = "cpu") -> Loss:
    """The loss of a job. A factory returns a callable (output, target) → 0-dim mean over the samples; a function is
    such a callable itself.

    Tensors of a module (weights of classes) are moved to `device`.
    Raises InvalidInput for an unknown name, and when first used for shapes that do not fit.
    """
    if not isinstance(spec, str):
        mean = _callable_from(spec, search_dirs, "loss", device)
        return Loss(spec.reference, mean, _weighted_by_samples(mean))
    check_name(spec, LOSSES, "loss")
    if spec == "mse":
        return Loss(spec, _mean_squared_error, _measure_squared_error)
    return Loss(spec, _cross_entropy, _measure_cross_entropy)


def build_metrics(specs: Sequence[Spec], search_dirs: Sequence[Path] = (), device: str = "cpu") -> tuple[Metric, ...]:
    """The metrics of a job, in order. Factories and functions are those of losses, and so are the errors."""
    return tuple(_build_metric(spec, search_dirs, device) for spec in specs)


def check_name(name: str, known: Sequence[str], kind: str) -> None:
    """Raises InvalidInput, with the nearest known name or the way to write a factory, unless `name` is known."""
    if name in known:
        return
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    if ":" in name:
        hint = f"a factory is written as {{factory: {name}}}"
    raise InvalidInput(f"no {kind} is called {name!r}; {hint}")


def _build_metric(spec: Spec, search_dirs: Sequence[Path], device: str) -> Metric:
    if not isinstance(spec, str):
        measure = _weighted_by_samples(_callable_from(spec, search_dirs, "metrics", device))
        return Metric(spec.reference, measure, _as_is)
    check_name(spec, METRICS, "metric")
    if spec == "accuracy":
        return Metric(spec, _measure_accuracy, _as_is)
    return Metric(spec, _measure_cross_entropy, _exponential)


def _callable_from(
    spec: FactoryConfig | FunctionConfig, search_dirs: Sequence[Path], key: str, device: str
) -> Callable[[Tensor, Tensor], Tensor]:
    made: object
    if isinstance(spec, FunctionConfig):
        made = partial(resolve(spec.function, search_dirs, key=key), **spec.args)
    else:
        made = call(spec, search_dirs, key=key)
    if not callable(made):
        raise InvalidInput(f"{spec.reference!r} returned {type(made).__name__}, expected a callable", key=key)
    if isinstance(made, nn.Module):
        made.to(device)

    def checked(output: Tensor, target: Tensor) -> Tensor:
        value = made(output, target)
        if not isinstance(value, Tensor) or value.numel() != 1:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise InvalidInput(f"{spec.reference!r} gave {shape}, expected one number in a tensor", key=key)
        return value.reshape(())

    return checked


def _weighted_by_samples(mean: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Measure]:
    def measure(output: Tensor, target: Tensor) -> Measure:
        samples = target.shape[0]
        return Measure(float(mean(output, target)) * samples, samples)

    return measure


def _as_is(mean: float) -> float:
    return mean


def _exponential(mean: float) -> float:
    try:
        return math.exp(mean)
    except OverflowError:
        return math.inf


def _rows(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Output (B,C) and target (B,) as they are; (B,T,V) and (B,T) as (B·T,V) and (B·T,)."""
    if output.dim() < 2 or output.shape[:-1] != target.shape or target.is_floating_point():
        raise InvalidInput(
            f"class targets must be whole numbers of the output's shape without its last dimension; the output is"
            f" {tuple(output.shape)}, the target {tuple(target.shape)} of {target.dtype}",
            key="loss",
        )
    return output.flatten(0, -2), target.flatten().long()


def _cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(*_rows(output, target), ignore_index=IGNORED_TARGET)


def _measure_cross_entropy(output: Tensor, target: Tensor) -> Measure:
    logits, classes = _rows(output, target)
    each = functional.cross_entropy(logits, classes, ignore_index=IGNORED_TARGET, reduction="none")
    return Measure(float(each.sum(dtype=torch.float64)), int((classes != IGNORED_TARGET).sum()))


def _measure_accuracy(output: Tensor, target: Tensor) -> Measure:
    logits, classes = _rows(output, target)
    counted = classes != IGNORED_TARGET
    return Measure(float(((logits.argmax(-1) == classes) & counted).sum()), int(counted.sum()))


def _same_shape(output: Tensor, target: Tensor) -> None:
    # torch would broadcast (B, 1) against (B,) into (B, B) and train on nonsense.
    if output.shape != target.shape:
        message = f"mse needs equal shapes; the output is {tuple(output.shape)}, the target {tuple(target.shape)}"
        raise InvalidInput(message, key="loss")


def _mean_squared_error(output: Tensor, target: Tensor) -> Tensor:
    _same_shape(output, target)
    return functional.mse_loss(output, target.to(output.dtype))


def _measure_squared_error(output: Tensor, target: Tensor) -> Measure:
    _same_shape(output, target)
    return Measure(float((output.double() - target.double()).square().sum()), target.numel())
