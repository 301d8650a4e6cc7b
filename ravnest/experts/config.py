"""What hosts and callers of one grid of experts agree on: experts.yaml.

In: the file, or the same as keyword arguments. Out: an `ExpertsConfig`, or an InvalidInput that names the file and each
faulty key. It imports none of the user's code; `build_expert` does.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Annotated, Self

import torch
from pydantic import Field, ValidationError, model_validator
from torch import nn

from cluster_planner import problems_of, read_validated
from ravnest.errors import InvalidInput
from ravnest.experts.grid import Expert, Grid
from ravnest.factories import FactoryConfig, call
from ravnest.job_sections import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Section
from ravnest.training.draws import numpy_and_python_seeded
from ravnest.training.optimizer import OptimizerConfig

MOST_VALUES = 1 << 24
"""The largest input or output of one sample, in numbers."""

REQUEST_BYTES = 128 << 20
"""The tensors of one request have at most so many bytes, which one sample of the largest has: the members' endpoints
take no much larger messages."""

Shape = Annotated[tuple[PositiveInt, ...], Field(min_length=1, max_length=8)]


class BatchConfig(Section):
    """How a host puts requests together."""

    most_samples: PositiveInt = 256
    """A batch with so many samples is computed at once. Callers divide larger requests."""

    most_wait_ms: NonNegativeFloat = 2.0
    """A request waits at most so long for others."""


class ExpertsConfig(Section):
    """The keys of experts.yaml."""

    name: str
    """The grid's name in the hash table: 1 to 24 of a-z, 0-9 and -."""

    grid: tuple[PositiveInt, ...]
    """How many coordinates each dimension has: [16, 16] are 256 experts."""

    expert: FactoryConfig
    """Returns the torch.nn.Module of one expert, whose input and output are one float32 tensor each."""

    input_shape: Shape
    """The shape of one sample."""

    output_shape: Shape | None = None
    """The shape of one sample's output; without it, that of the input."""

    seed: NonNegativeInt = 0
    """Initial weights follow from it and the expert's coordinates."""

    optimizer: OptimizerConfig = OptimizerConfig(name="adamw", lr=1e-3)
    """Each expert has one of its own. Only a constant schedule, perhaps with a warm-up, and no groups."""

    max_staleness: NonNegativeInt = 64
    """A gradient is refused when the expert has had more updates since the forward that it belongs to."""

    batch: BatchConfig = BatchConfig()
    copy_every_s: PositiveFloat = 5.0
    """How often a host hands the state of each changed expert to its stand-by host."""

    checkpoint_every_s: PositiveFloat = 30.0
    """How often it writes each changed expert to its folder."""

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        try:
            _ = self.places
        except InvalidInput as error:
            raise ValueError(f"{error.key}: {error.message}") from None
        for shape in (self.input_shape, self.out_shape):
            if prod(shape) > MOST_VALUES:
                raise ValueError(f"a sample has at most {MOST_VALUES} numbers, not {prod(shape)}")
        if self.optimizer.groups:
            raise ValueError("optimizer.groups: an expert has one optimizer for all its parameters")
        if self.optimizer.schedule.name != "constant":
            raise ValueError("optimizer.schedule.name: expected constant, since experts train without a known end")
        return self

    @cached_property
    def places(self) -> Grid:
        return Grid(self.name, self.grid)

    @property
    def request_samples(self) -> int:
        """How many samples one request may have."""
        each = 4 * (prod(self.input_shape) + prod(self.out_shape))
        return max(1, min(self.batch.most_samples, REQUEST_BYTES // each))

    @property
    def out_shape(self) -> tuple[int, ...]:
        return self.input_shape if self.output_shape is None else self.output_shape


def load_experts(path: str | os.PathLike[str]) -> ExpertsConfig:
    """The contents of an experts.yaml. Raises InvalidInput with a line for each mistake."""
    return read_validated(path, ExpertsConfig)


def experts_from(**keys: object) -> ExpertsConfig:
    """The same from keyword arguments. Raises InvalidInput."""
    try:
        return ExpertsConfig.model_validate(keys)
    except ValidationError as error:
        raise InvalidInput.several(problems_of(error, ExpertsConfig, keys)) from None


def build_expert(
    config: ExpertsConfig, expert: Expert, search_dirs: Sequence[Path], path: str | None = None
) -> nn.Module:
    """The module of one expert with its initial weights. Raises InvalidInput where the factory makes no such module.

    A host computes the forward again for each backward, in whatever batch. So an expert that draws random numbers, or
    has state that a forward changes (as batch-norm has), is refused.
    """
    number = 0
    for one, side in zip(expert, config.grid, strict=True):
        number = number * side + one
    seed = (config.seed << 20) + number
    with torch.random.fork_rng(devices=[]), numpy_and_python_seeded(seed):
        torch.manual_seed(seed)
        made = call(config.expert, search_dirs, path=path, key="expert.factory")
        if not isinstance(made, nn.Module):
            message = f"{config.expert.factory!r} must return a torch.nn.Module, not {type(made).__name__}"
            raise InvalidInput(message, path=path, key="expert.factory")
        _require_fit(config, made.train(), path)
    return made


def _require_fit(config: ExpertsConfig, module: nn.Module, path: str | None) -> None:
    def wrong(message: str) -> InvalidInput:
        return InvalidInput(f"{config.expert.factory!r} {message}", path=path, key="expert.factory")

    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise wrong("makes a module without parameters to train")
    if any(tensor.dtype != torch.float32 for tensor in module.parameters()):
        raise wrong("makes a module whose parameters are not all float32")
    samples = torch.randn(2, *config.input_shape)
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    try:
        with torch.no_grad():
            first, second = module(samples), module(samples)
    except Exception as error:
        raise wrong(f"cannot take a batch of shape {tuple(samples.shape)}: {type(error).__name__}: {error}") from error
    expected = (2, *config.out_shape)
    if not isinstance(first, torch.Tensor) or tuple(first.shape) != expected or first.dtype != torch.float32:
        shown = f"{first.dtype} {tuple(first.shape)}" if isinstance(first, torch.Tensor) else type(first).__name__
        raise wrong(f"must return float32 of shape {expected} for {tuple(samples.shape)}, not {shown}")
    probe = samples.clone().requires_grad_()
    with torch.enable_grad():
        output = module(probe)
    if not output.requires_grad or torch.autograd.grad(output.sum(), probe, allow_unused=True)[0] is None:
        raise wrong("makes a module whose output does not depend on its input by a gradient")
    if not torch.equal(first, second):
        raise wrong("draws random numbers in training (dropout?): its forward cannot be computed again")
    if any(not torch.equal(buffer, before[name]) for name, buffer in module.named_buffers()):
        raise wrong("changes a buffer in its forward (batch-norm?): its forward cannot be computed again")
