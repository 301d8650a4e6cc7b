"""What travels to a stage: the operations of its span and what they need, without any weight.

A program is plain data (plus the model's small constants), so it is picklable and says all there is to know
about a stage before it exists. It does not know which node runs it or how its tensors travel."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ravnest.splitting.operations import Operation, Reference

if TYPE_CHECKING:
    from ravnest.splitting.stage_module import StageModule


@dataclass(frozen=True)
class TensorSpec:
    """A parameter or buffer under its original name."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool
    """False for buffers, frozen parameters, and parameters that the forward never uses."""
    persistent: bool = True
    """False for buffers that the unmodified model does not save either (rotary frequencies)."""

    @property
    def size_bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True)
class ValueSpec:
    """A tensor that enters or leaves a stage. Across a cut it is contiguous."""

    name: str
    dtype: torch.dtype
    shape: tuple[int | None, ...]
    """As it travels; None where the size varies with the batch."""
    needs_gradient: bool
    """In training, a gradient of the same shape comes back for it."""
    is_int: bool = False
    """An integer of the graph, carried as a 0-dim int64 tensor."""
    order: tuple[int, ...] = ()
    """How its dimensions are permuted to travel contiguously; empty where they are not."""


@dataclass(frozen=True)
class SymbolSource:
    """Where a stage reads a batch-dependent size: dimension `dim` (before `order`) of input `position`."""

    symbol: str
    position: int
    dim: int


@dataclass(frozen=True)
class SpanCode:
    """The operations of one span in one mode."""

    operations: tuple[Operation, ...]
    inputs: tuple[Reference, ...]
    outputs: tuple[Reference, ...]
    symbols: tuple[SymbolSource, ...]


@dataclass(frozen=True)
class StageProgram:
    """Units [start, end) of a captured model. Inputs of the first stage are the model's own (positional
    arguments, then keyword arguments); outputs of the last stage are the tensors in the model's output, in
    pytree order."""

    start: int
    end: int
    parameters: tuple[TensorSpec, ...]
    buffers: tuple[TensorSpec, ...]
    constants: tuple[tuple[str, Tensor], ...]
    inputs: tuple[ValueSpec, ...]
    outputs: tuple[ValueSpec, ...]
    train: SpanCode
    evaluate: SpanCode
    outputs_travel: bool
    """False for the last stage, whose outputs keep the model's own layout."""
    borrowed: tuple[TensorSpec, ...] = ()
    """Tied parameters that the span uses and that belong to units before it."""
    changed: tuple[str, ...] = ()
    """Buffers that the graph itself writes. Operators may write others, persistent ones, without saying so."""

    @property
    def weight_specs(self) -> tuple[TensorSpec, ...]:
        """All that `build` takes of the weights."""
        return (*self.parameters, *self.borrowed, *self.buffers)

    @property
    def weight_bytes(self) -> int:
        return sum(spec.size_bytes for spec in self.weight_specs)

    def build(
        self, weights: Mapping[str, Tensor], device: torch.device | str = "cpu", *, copy: bool = True
    ) -> "StageModule":
        """The stage as a module on `device`.

        weights: at least this span's parameters and buffers by original name; others are ignored.
        copy: False lets the stage own and change the given tensors where they already are on `device`.
        Raises InvalidInput naming a weight that is missing or has another shape or dtype.
        """
        from ravnest.splitting.stage_module import StageModule

        return StageModule(self, weights, torch.device(device), copy=copy)
