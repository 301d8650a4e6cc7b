"""Measures what every operation costs and how its results lie in memory, by running the graph on tensors without data.

In: a converted graph and the sample's shapes. Out: FLOPs, saved bytes, shapes and shared storages. The tensors are fake
CPU tensors: operators take the path that they take on a real CPU (fused attention, for one), and no memory is touched.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from ravnest.splitting.conversion import Converted
from ravnest.splitting.exporting import UnfitError, quiet
from ravnest.splitting.program import (
    Argument,
    Context,
    Grad,
    Operation,
    StageDevice,
    Symbol,
    Value,
    Weight,
    resolve_target,
    written_arguments,
)


@dataclass(frozen=True)
class TensorFacts:
    """A value as it lies in memory at the sample's batch size."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    order: tuple[int, ...]
    """Its dimensions by falling stride, if it is dense in that order; empty where it is contiguous or not dense."""
    storage: int
    """A number that is equal for values that share memory."""
    needs_gradient: bool

    @property
    def size_bytes(self) -> int:
        """The size in memory, in bytes."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True)
class OperationFacts:
    """What one operation costs, and which storages it touches, at the sample's batch size."""

    flops: int
    moved_bytes: int
    """What it reads and writes, each tensor once and whole; 0 where its results only view what is there."""
    saved_bytes: int
    """The bytes that autograd keeps of storages which are neither a weight's nor counted for an earlier operation."""
    reads: frozenset[int]
    """The storages of all its arguments and results."""
    writes: frozenset[int]
    """The storages that it changes in place."""


@dataclass(frozen=True)
class Measured:
    """The measurements of one graph."""

    operations: tuple[OperationFacts, ...]
    tensors: dict[str, TensorFacts]
    """Name of a value that is one tensor → how it lies in memory."""
    weights: dict[str, int]
    """Name of a weight → its storage."""


def measure(converted: Converted, inputs: tuple[Tensor, ...]) -> Measured:
    """Measure a graph. Costs are those of the whole sample: divide by its batch size for those of one.

    Raises UnfitError for operators that cannot run on the CPU as they were exported.
    """
    return _Measuring(converted, inputs).run()


class _Measuring:
    def __init__(self, converted: Converted, inputs: tuple[Tensor, ...]) -> None:
        self.converted = converted
        self.inputs = inputs
        self.values: dict[str, Any] = {}
        self.weights: dict[str, Tensor] = {}
        self.storages: dict[int, int] = {}
        self.held: list[torch.UntypedStorage] = []  # keeps storages alive, so that their addresses stay distinct
        self.charged: set[int] = set()
        self.saving = 0

    def run(self) -> Measured:
        with quiet(), FakeTensorMode() as fake:
            c = self.converted
            for spec in (*c.parameters.values(), *c.buffers.values()):
                empty = torch.empty(spec.shape, dtype=spec.dtype)
                self.weights[spec.name] = empty.requires_grad_(spec.requires_grad)
            for name, constant in c.constants.items():
                self.weights[name] = fake.from_tensor(constant)
            self.charged = {self._storage(tensor) for tensor in self.weights.values()}
            for name, sample in zip(c.inputs, self.inputs, strict=True):
                self.values[name] = torch.empty(sample.shape, dtype=sample.dtype)
            with (
                torch.enable_grad(),
                torch.autograd.graph.saved_tensors_hooks(self._on_saved, _unused),
                FlopCounterMode(display=False, custom_mapping=_FLOPS) as counter,
            ):
                facts = [self._operation(operation, counter) for operation in c.graph.operations]
            tensors = {name: self._facts(v) for name, v in self.values.items() if isinstance(v, Tensor)}
            weights = {name: self._storage(tensor) for name, tensor in self.weights.items()}
        return Measured(tuple(facts), tensors, weights)

    def _operation(self, operation: Operation, counter: FlopCounterMode) -> OperationFacts:
        function = resolve_target(operation.target)
        args = [self._argument(argument) for argument in operation.args]
        kwargs = {key: self._argument(argument) for key, argument in operation.kwargs}
        before = {self._storage(tensor) for tensor in _tensors([args, kwargs])}
        self.saving = 0
        counted = counter.get_total_flops()
        try:
            with ExitStack() as stack:
                for context in operation.contexts:
                    stack.enter_context(_entered(context))
                result = function(*args, **kwargs)
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            where = operation.scope or "the model"
            raise UnfitError(f"{operation.target} in {where} cannot be run: {reason}") from error
        self.values[operation.name] = result
        after = {self._storage(tensor): tensor for tensor in _tensors(result)}
        written = [self._argument(argument) for argument in written_arguments(operation)]
        writes = frozenset(self._storage(tensor) for tensor in _tensors(written))
        flops = int(counter.get_total_flops() - counted) or _recurrent_flops(operation, args)
        made = [t for storage, t in after.items() if storage not in before or storage in writes]
        if flops == 0:
            flops = sum(t.numel() for t in made)
        moved = sum(_bytes_of(t) for t in (*_tensors([args, kwargs]), *made)) if made else 0
        return OperationFacts(flops, moved, self.saving, frozenset(before | after.keys()), writes)

    def _on_saved(self, tensor: Tensor) -> None:
        storage = self._storage(tensor)
        if storage not in self.charged:
            self.charged.add(storage)
            self.saving += tensor.untyped_storage().nbytes()

    def _storage(self, tensor: Tensor) -> int:
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address not in self.storages:
            self.storages[address] = len(self.storages)
            self.held.append(storage)
        return self.storages[address]

    def _facts(self, tensor: Tensor) -> TensorFacts:
        return TensorFacts(
            tuple(tensor.shape), tensor.dtype, _order(tensor), self._storage(tensor), tensor.requires_grad
        )

    def _argument(self, argument: Argument) -> Any:
        match argument:
            case Value(name):
                return self.values[name]
            case Weight(name):
                return self.weights[name]
            case Symbol(name):
                source, _, dim = name.rpartition(".")
                return self.values[source].shape[int(dim)]
            case StageDevice():
                return torch.device("cpu")
            case tuple():
                return [self._argument(element) for element in argument]
        return argument


def _order(tensor: Tensor) -> tuple[int, ...]:
    if tensor.is_contiguous():
        return ()
    strides = tensor.stride()
    order = tuple(sorted(range(tensor.ndim), key=lambda dim: -strides[dim]))
    return order if tensor.permute(order).is_contiguous() else ()


def _entered(context: Context) -> Any:
    if isinstance(context, Grad):
        return torch.set_grad_enabled(context.enabled)
    return torch.autocast("cpu", context.dtype, context.enabled, context.cache_enabled)


def _tensors(structure: Any) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(structure) if isinstance(leaf, Tensor)]


def _bytes_of(tensor: Tensor) -> int:
    """The bytes of its numbers, each once where they are spread out (expanded)."""
    return min(tensor.numel() * tensor.dtype.itemsize, tensor.untyped_storage().nbytes())


def _unused(_: object) -> Tensor:
    raise AssertionError("no backward is run while measuring")


def _flash_on_cpu(query: Any, key: Any, value: Any, *_: object, **__: object) -> int:
    return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]


_FLOPS: dict[Any, Callable[..., int]] = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _flash_on_cpu}


def _recurrent_flops(operation: Operation, args: list[Any]) -> int:
    """The FLOPs of a fused recurrent kernel, which torch's counter does not see: each step uses every weight matrix."""
    if operation.target not in (
        "aten.lstm.input",
        "aten.gru.input",
        "aten.rnn_tanh.input",
        "aten.rnn_relu.input",
    ):
        return 0
    steps = args[0].numel() // args[0].shape[-1]
    return 2 * int(steps) * sum(int(weight.numel()) for weight in args[2] if weight.ndim == 2)
