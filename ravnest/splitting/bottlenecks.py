"""Narrow places in a model, where a cut costs few bytes: a change of the model that its job asks for.

In: a model, and what the job says of its bottlenecks. Out: the same model, in which the output of each named module
goes through a linear map to fewer features and another one back. Both belong to the model: they are trained, saved and
exported with it, under the name of the module and `bottleneck`. Where a pipeline is cut between the two, the few
features are all that crosses. The planner finds that by itself, since it cuts where few bytes are alive.

Residual streams of trained transformers are close to a subspace of few dimensions, which is why this can work (Protocol
Models, arXiv 2506.01260; ResBM). experiments/wire measures what it costs in learning.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Self

import torch
from pydantic import model_validator
from torch import Tensor, nn

from ravnest.errors import InvalidInput
from ravnest.job_sections import Integer, PositiveInt, Section

CHILD = "bottleneck"
"""The name of the module that is added to the one whose output it narrows."""

DOWN = "down"
"""The name in it of the map to fewer features, whose output a cut sends."""


class BottleneckConfig(Section):
    """A narrow place in the model: one entry of `model.bottlenecks` in the job file."""

    after: str
    """The module whose output is narrowed, as `named_modules` calls it; in each part `*` stands for anything."""

    features: PositiveInt
    """The size of that output in the dimension `dim`."""

    width: PositiveInt
    """The features that are left: they are what crosses a cut there."""

    dim: Integer = -1
    """The dimension of the features: -1 for sequences, 1 for the channels of images."""

    @model_validator(mode="after")
    def _narrower(self) -> Self:
        if self.width >= self.features:
            raise ValueError(f"width {self.width} is no less than the {self.features} features")
        if self.dim == 0:
            raise ValueError("dim 0 is the samples of a batch")
        return self


class Bottleneck(nn.Module):
    """Maps `features` in dimension `dim` to `width` and back: a tensor of the same shape, of less rank.

    At the start it is the projection on a random subspace: the rows of `down` are orthonormal, and `up` is its
    transpose.
    """

    def __init__(self, features: int, width: int, dim: int) -> None:
        super().__init__()
        self.features, self.dim = features, dim
        self.down = nn.Linear(features, width, bias=False)
        self.up = nn.Linear(width, features)
        nn.init.orthogonal_(self.down.weight)
        with torch.no_grad():
            self.up.weight.copy_(self.down.weight.T)
        nn.init.zeros_(self.up.bias)

    def forward(self, whole: Tensor) -> Tensor:
        """The output of the module, narrowed. Raises InvalidInput where it has other features than the job says."""
        if not -whole.dim() <= self.dim < whole.dim() or whole.shape[self.dim] != self.features:
            raise InvalidInput(
                f"the output of shape {tuple(whole.shape)} has not {self.features} features in dimension {self.dim}",
                key="model.bottlenecks",
            )
        narrow: Tensor = self.down(whole.movedim(self.dim, -1))
        wide: Tensor = self.up(narrow)
        return wide.movedim(-1, self.dim)


def insert_bottlenecks(model: nn.Module, bottlenecks: Sequence[Mapping[str, Any]]) -> None:
    """Narrow the outputs of modules of `model`, in place.

    Each of `bottlenecks` has `after` (the name of a module, or a pattern of which each part between dots may have `*`),
    `features`, `width` and `dim`. Those that are alike in the last three begin as the projection on one subspace: what
    one lets through, the others of the same stream do, too (decision 244). Raises InvalidInput at `model.bottlenecks`
    where no module has such a name, where one has no output of its own, or is named twice.
    """
    modules, first = dict(model.named_modules()), dict[tuple[int, int, int], Bottleneck]()
    for index, one in enumerate(bottlenecks):
        key = f"model.bottlenecks[{index}].after"
        found = [name for name in modules if name and _matches(name, one["after"])]
        if not found:
            raise InvalidInput(f"{one['after']!r} is the name of no module of the model", key=key)
        for name in found:
            size = one["features"], one["width"], one["dim"]
            bottleneck = Bottleneck(*size)
            with torch.no_grad():
                bottleneck.down.weight.copy_(first.setdefault(size, bottleneck).down.weight)
                bottleneck.up.weight.copy_(bottleneck.down.weight.T)
            _insert(modules[name], name, bottleneck.to(_dtype_of(modules[name], model)), key)


def _matches(name: str, pattern: str) -> bool:
    parts, patterns = name.split("."), pattern.split(".")
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))


def _dtype_of(module: nn.Module, model: nn.Module) -> torch.dtype | None:
    """The type of the weights of `module`, or, where it has none, of the model; None where that has none either."""
    weights = (p.dtype for owner in (module, model) for p in owner.parameters() if p.is_floating_point())
    return next(weights, None)


def _insert(module: nn.Module, name: str, bottleneck: Bottleneck, key: str) -> None:
    if isinstance(module, nn.ModuleList | nn.ModuleDict | nn.ParameterList | nn.ParameterDict):
        raise InvalidInput(f"{name!r} is a {type(module).__name__}, which has no output: name a module in it", key=key)
    if hasattr(module, CHILD):
        raise InvalidInput(f"{name!r} has a bottleneck already", key=key)
    module.add_module(CHILD, bottleneck)
    if type(module).forward is not nn.Sequential.forward:  # which calls its last child by itself
        module.register_forward_hook(_narrowed)


def _narrowed(module: nn.Module, args: object, output: object) -> object:
    """The output of a module with a bottleneck. Of a tuple, the first one is narrowed: the stream of a layer."""
    bottleneck = module.get_submodule(CHILD)
    if isinstance(output, Tensor):
        return bottleneck(output)
    if isinstance(output, tuple) and output and isinstance(output[0], Tensor):
        return (bottleneck(output[0]), *output[1:])
    raise InvalidInput(
        f"{type(module).__name__} returns {type(output).__name__}, and a bottleneck needs a tensor, or a tuple whose"
        " first item is one",
        key="model.bottlenecks",
    )
