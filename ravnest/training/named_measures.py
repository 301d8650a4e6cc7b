"""The losses and metrics that a job names: cross_entropy, mse, accuracy and perplexity.

In: a name with its choices, and a batch's output and target as the model and the data set return them. Out: a mean to
differentiate, and sums that add up correctly over several batches when the last is short.

Shapes are torch's. The output of a classification is (N, C) with targets (N,), or (N, C, d1, …) with targets
(N, d1, …), as of images; a sequence model has its classes last: (N, T, C) with targets (N, T). Which of the two is
meant follows from the shapes wherever only one of them fits, and has to be said (`classes`) where both do. Float
targets of the output's shape are probabilities of classes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor
from torch.nn import functional

from ravnest.errors import InvalidInput
from ravnest.job_sections import Fraction, Integer, NonNegativeFloat, Section
from ravnest.splitting.output_structure import tensors_by_path

LOSSES = ("cross_entropy", "mse")
METRICS = ("accuracy", "perplexity")
IGNORED_TARGET = -100
"""A class target of this value counts nowhere (torch's own default)."""

_OF_CLASSES = {"output", "target", "classes", "ignore_index"}
_CHOICES: Mapping[str, set[str]] = {
    "cross_entropy": _OF_CLASSES | {"label_smoothing", "weight"},
    "mse": {"output", "target"},
    "accuracy": _OF_CLASSES,
    "perplexity": _OF_CLASSES,
}
_OUTPUTS = ("logits",)
_TARGETS = ("labels", "label")


class MeasureConfig(Section):
    """A loss or metric by name, with what is chosen about it. A name alone is one without choices."""

    name: str
    """cross_entropy or mse; for a metric accuracy or perplexity."""

    output: str | None = None
    """Which tensor of the model's output it takes: a key, a position, or a path of these (`hidden.1`)."""

    target: str | None = None
    """Which tensor of the target it takes, where that has several."""

    classes: Literal["last", "second"] | None = None
    """Which dimension of the output has the classes: the last (sequences) or the second (torch's rule, images). Without
    it, the shapes decide, and have to be clear."""

    ignore_index: Integer = IGNORED_TARGET
    """Class targets of this value count nowhere."""

    label_smoothing: Fraction = 0.0
    """As in torch.nn.CrossEntropyLoss."""

    weight: tuple[NonNegativeFloat, ...] | None = None
    """A weight for each class, as in torch.nn.CrossEntropyLoss."""

    @model_validator(mode="after")
    def _choices_fit(self) -> Self:
        known = _CHOICES.get(self.name, self.model_fields_set)  # another name is refused by check_name
        for key in sorted(self.model_fields_set - {"name"} - known):
            raise ValueError(f"{self.name} has no {key!r}; it takes {', '.join(sorted(known))}")
        return self


def check_name(name: str, known: Sequence[str], kind: str) -> None:
    """Raises InvalidInput, with the nearest known name or the way to write a factory, unless `name` is known."""
    if name in known:
        return
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    if ":" in name:
        hint = f"a factory is written as {{factory: {name}}}"
    raise InvalidInput(f"no {kind} is called {name!r}; {hint}")


@dataclass(frozen=True)
class Measure:
    """A sum over `count` samples or targets. The measures of batches add up to the measure of all of them."""

    total: float
    count: float
    """A whole number, except of a cross entropy whose classes are weighted: there it is the sum of the weights."""

    def __add__(self, other: "Measure") -> "Measure":
        return Measure(self.total + other.total, self.count + other.count)

    @property
    def mean(self) -> float:
        """The mean; NaN when nothing was counted."""
        return self.total / self.count if self.count else math.nan


Measured = Callable[[Any, Any], Measure]


def mean_of(config: MeasureConfig) -> Callable[[Any, Any], Tensor]:
    """The loss of that name as a function of a batch's output and target. It gives the mean, a 0-dim tensor.

    The function raises InvalidInput at `loss` where output and target do not fit each other or the choices.
    """
    if config.name == "mse":
        return lambda output, target: _mean_squared_error(*_pair(config, output, target, "loss"))
    entropy = _CrossEntropy(config, "loss")
    return lambda output, target: entropy.mean(*_pair(config, output, target, "loss"))


def measure_of(config: MeasureConfig, key: str) -> Measured:
    """The loss or metric of that name as a function of a batch's output and target. It gives sums.

    The function raises InvalidInput at `key` as that of `mean_of` does.
    """
    if config.name == "mse":
        return lambda output, target: _measure_squared_error(*_pair(config, output, target, key))
    entropy = _CrossEntropy(config, key)
    measure = entropy.accuracy if config.name == "accuracy" else entropy.measure
    return lambda output, target: measure(*_pair(config, output, target, key))


def chosen_output(config: MeasureConfig, names: Sequence[str], key: str) -> str:
    """Which of the tensors that a model returns is taken, given their paths. Raises InvalidInput, with the paths, where
    that is not clear."""
    return _chosen(names, config.output, _OUTPUTS, _Words("the model returns", config.name, key, "output"))


@dataclass(frozen=True)
class _Words:
    """How a tensor that is not found is spoken of: who should have it, which measure at which key wants it, and with
    which of its choices."""

    who: str
    measure: str
    key: str
    choice: str


def _pair(config: MeasureConfig, output: Any, target: Any, key: str) -> tuple[Tensor, Tensor]:
    if not isinstance(output, Tensor):
        tensors = tensors_by_path(output)
        output = tensors[chosen_output(config, tuple(tensors), key)]
    if not isinstance(target, Tensor) or config.target is not None:
        tensors = tensors_by_path(target)
        words = _Words("the target has", config.name, key, "target")
        target = tensors[_chosen(tuple(tensors), config.target, _TARGETS, words)]
    return output, target


def _chosen(names: Sequence[str], wanted: str | None, usual: Sequence[str], words: _Words) -> str:
    found = "one tensor without a name" if list(names) == ["output"] else ", ".join(names) or "no tensor"
    if wanted is not None and wanted not in names:
        raise InvalidInput(f"{words.who} {found}; there is no {wanted!r}", key=f"{words.key}.{words.choice}")
    if wanted is not None:
        return wanted
    if len(names) == 1:
        return names[0]
    name = next((name for name in usual if name in names), None)
    if name is None:
        raise InvalidInput(
            f"{words.who} {found}; {words.measure} takes one tensor: call it {usual[0]!r}, or say which it is with"
            f" {{name: {words.measure}, {words.choice}: ...}}",
            key=words.key,
        )
    return name


class _CrossEntropy:
    """Cross entropy and accuracy of class numbers, and cross entropy of class probabilities."""

    def __init__(self, config: MeasureConfig, key: str) -> None:
        self._config = config
        self._key = key
        self._weights: Tensor | None = None

    def mean(self, output: Tensor, target: Tensor) -> Tensor:
        return self._entropy(*self._arranged(output, target), "mean")

    def measure(self, output: Tensor, target: Tensor) -> Measure:
        logits, classes = self._arranged(output, target)
        total = float(self._entropy(logits, classes, "none").sum(dtype=torch.float64))
        if classes.is_floating_point():  # torch's mean divides by the targets, whatever the weights are
            return Measure(total, classes.numel() // classes.shape[1])
        counted = classes != self._config.ignore_index
        weights = self._class_weights(logits)
        if weights is None:
            return Measure(total, int(counted.sum()))
        return Measure(total, float(weights[classes[counted]].sum(dtype=torch.float64)))

    def accuracy(self, output: Tensor, target: Tensor) -> Measure:
        logits, classes = self._arranged(output, target)
        if classes.is_floating_point():
            raise InvalidInput("accuracy needs numbers of classes, not their probabilities", key=self._key)
        counted = classes != self._config.ignore_index
        return Measure(float(((logits.argmax(1) == classes) & counted).sum()), int(counted.sum()))

    def _entropy(self, logits: Tensor, classes: Tensor, reduction: str) -> Tensor:
        return functional.cross_entropy(
            logits,
            classes,
            weight=self._class_weights(logits),
            ignore_index=self._config.ignore_index,
            reduction=reduction,
            label_smoothing=self._config.label_smoothing,
        )

    def _class_weights(self, logits: Tensor) -> Tensor | None:
        given = self._config.weight
        if given is None:
            return None
        if len(given) != logits.shape[1]:
            raise InvalidInput(
                f"has {len(given)} weights, and the output {logits.shape[1]} classes", key=f"{self._key}.weight"
            )
        if self._weights is None or self._weights.device != logits.device or self._weights.dtype != logits.dtype:
            self._weights = torch.tensor(given, dtype=logits.dtype, device=logits.device)
        return self._weights

    def _arranged(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Output and target with the classes in the output's second dimension: rows where they are the last one."""
        classes = self._config.classes
        if target.is_floating_point():
            last = second = output.dim() >= 2 and output.shape == target.shape
        else:
            last = output.dim() >= 2 and output.shape[:-1] == target.shape
            second = output.dim() >= 2 and (*output.shape[:1], *output.shape[2:]) == tuple(target.shape)
        if last and second and output.dim() > 2 and classes is None:
            raise InvalidInput(
                f"{_shapes(output, target)}: whether the classes are in its last dimension (sequences) or in its second"
                f" (images) is not clear; say {{name: {self._config.name}, classes: last}} or classes: second",
                key=self._key,
            )
        if last and classes != "second":
            rows = target.flatten(0, -2) if target.is_floating_point() else target.flatten().long()
            return output.flatten(0, -2), rows
        if second and classes != "last":
            return output, target if target.is_floating_point() else target.long()
        wanted = {
            "last": "without its last dimension",
            "second": "without its second dimension",
            None: "without its dimension of classes, the last or the second",
        }[classes]
        raise InvalidInput(
            f"class targets must be whole numbers of the output's shape {wanted}, or probabilities of the output's own"
            f" shape; {_shapes(output, target)}",
            key=self._key,
        )


def _shapes(output: Tensor, target: Tensor) -> str:
    return f"the output is {tuple(output.shape)}, the target {tuple(target.shape)} of {target.dtype}"


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
