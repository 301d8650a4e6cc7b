"""The graph of a model, and the program of a stage, as plain data.

A graph is a list of operations in execution order, with their arguments and the contexts they run in. Plain data
prints, compares, hashes and travels; torch.fx graphs do none of these reliably. A `StageProgram` is what travels to a
stage: the operations of its span in both modes, and what they need besides the values of weights. It is plain data too
(and the model's small constants), so that everything about a stage is known before it exists.

conversion.py makes graphs, capturing.py makes programs, and stage_module.py runs them. Which node runs a
stage, and how its tensors travel, is not part of a program.
"""

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ravnest.errors import InvalidInput, ModelNotSplittable
from ravnest.splitting.autograd_functions import is_function, resolve_function
from ravnest.splitting.output_structure import OutputTree

LOSS_MODULE = "loss"
"""The name in the last stage of the loss's module, where that has parameters: theirs begin with it and a dot."""

_PYTHON_MODULES = frozenset({"_operator", "math", "torch"})


@dataclass(frozen=True)
class Value:
    """The result of the operation, or the model input, of that name."""

    name: str


@dataclass(frozen=True)
class Weight:
    """A parameter, buffer or constant, under its original name."""

    name: str


@dataclass(frozen=True)
class Symbol:
    """A size that varies with the batch, named after the input dimension where it is first seen."""

    name: str


@dataclass(frozen=True)
class StageDevice:
    """The device that the stage runs on. It stands wherever the graph named a device."""


@dataclass(frozen=True)
class Grad:
    """A context in which gradients are recorded or not (torch.no_grad, torch.enable_grad)."""

    enabled: bool


@dataclass(frozen=True)
class Autocast:
    """The context torch.autocast, on the stage's kind of device."""

    dtype: torch.dtype | None
    enabled: bool
    cache_enabled: bool


Context = Grad | Autocast
Reference = Value | Weight | Symbol
Argument = Any
"""A Reference, a StageDevice, a literal (None, bool, int, float, complex, str, dtype, layout, memory format), or a
tuple of these."""


@dataclass(frozen=True)
class Operation:
    """One call. `target` is `namespace.operator.overload` of torch.ops, `module:function` of Python, or
    `module:Class.apply` of an autograd.Function of the user's, which returns a tuple."""

    name: str
    target: str
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...] = ()
    contexts: tuple[Context, ...] = ()
    scope: str = ""
    """Path of the module whose forward made the call, for messages and for pairing the two modes."""
    line: str = field(default="", compare=False)
    """`file:line` of the code that made the call, for messages."""

    @property
    def described(self) -> str:
        """The call as messages name it: aten.add_.Tensor in blocks.0 (model.py:12)."""
        return f"{self.target} in {self.scope or 'the model'}{f' ({self.line})' if self.line else ''}"

    def references(self) -> Iterator[Reference]:
        """Everything that the call reads, in the order of its arguments; repeats are kept."""
        for argument in (*self.args, *(value for _, value in self.kwargs)):
            yield from references(argument)


@dataclass(frozen=True)
class ModelGraph:
    """A whole model in one mode (training or evaluation)."""

    operations: tuple[Operation, ...]
    outputs: tuple[Reference, ...]


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
        """The size in memory, in bytes."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


HALVES = (torch.bfloat16, torch.float16)
"""The types of 16 bits."""


def is_narrow(dtype: torch.dtype) -> bool:
    """Whether weights of this type are trained through float32 masters (ravnest/training/weights.py)."""
    return dtype.is_floating_point and dtype.itemsize < torch.float32.itemsize


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
    is_complex: bool = False
    """A complex tensor, which travels as its real and imaginary parts. `dtype` and `shape`, with a last dimension of 2,
    are those of the parts."""


@dataclass(frozen=True)
class SymbolSource:
    """The place of a size that varies with the batch: dimension `dim` (before `order`) of its input `position`."""

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
    """Units [start, end) of a captured model.

    The inputs of the first stage are the model's own (positional arguments, then keyword arguments); the outputs of the
    last stage are the tensors in the model's output, in pytree order.
    """

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
    returned: OutputTree = None
    """How the outputs of the last stage stand in what the model returns."""
    changed: tuple[str, ...] = ()
    """Buffers that the graph itself writes. Operators may write others, persistent ones, without saying so."""
    imports: tuple[str, ...] = ()
    """The modules of operators and functions which are not torch's own. To be imported before the stage is made."""

    @property
    def weight_specs(self) -> tuple[TensorSpec, ...]:
        """All weights that a StageModule of this program takes."""
        return (*self.parameters, *self.borrowed, *self.buffers)

    @property
    def weight_bytes(self) -> int:
        """The size of these weights in memory."""
        return sum(spec.size_bytes for spec in self.weight_specs)


def check_inputs(specs: Sequence[ValueSpec], tensors: Sequence[Tensor], what: str) -> None:
    """Raises InvalidInput where a batch, which the message calls `what`, is not of the shapes that were captured.

    A graph holds every size but the batch's as a constant. With another one it would fail somewhere inside, or compute
    something else.
    """
    for spec, tensor in zip(specs, tensors, strict=False):
        fits = tensor.dim() == len(spec.shape) and all(
            wanted is None or size == wanted for size, wanted in zip(tensor.shape, spec.shape, strict=True)
        )
        if not fits or tensor.dtype != spec.dtype:
            raise InvalidInput(
                f"{what} has {spec.name!r} as {tensor.dtype} {tuple(tensor.shape)}, and the first training samples,"
                f" with which the model was captured, as {spec.dtype} {spec.shape} (None is the batch): pad or cut"
                " all samples, of both sets, to one shape",
                key="data.factory",
            )


def references(argument: Argument) -> Iterator[Reference]:
    """The references in an argument, in order."""
    if isinstance(argument, Value | Weight | Symbol):
        yield argument
    elif isinstance(argument, tuple):
        for element in argument:
            yield from references(element)


def weights_read(operations: Iterable[Operation], outputs: tuple[Reference, ...] = ()) -> set[str]:
    """Names of the weights that these operations and outputs refer to."""
    read = [reference for operation in operations for reference in operation.references()]
    return {reference.name for reference in (*read, *outputs) if isinstance(reference, Weight)}


def resolve_target(target: str) -> Callable[..., Any]:
    """The function behind a target's name. Raises ModelNotSplittable where this machine has no such operator."""
    found: Any
    if is_function(target):
        return resolve_function(target)
    if ":" in target:
        module, _, name = target.partition(":")
        if module not in _PYTHON_MODULES:
            raise ModelNotSplittable(f"the model calls {name!r} of {module!r}, which stages do not know")
        found = getattr(importlib.import_module(module), name)
    else:
        found = torch.ops
        for part in target.split("."):
            try:
                found = getattr(found, part)
            except AttributeError:
                raise ModelNotSplittable(
                    f"operator {target!r} is not registered here; import the package that defines it"
                ) from None
    assert callable(found)
    return found  # type: ignore[no-any-return]


def is_random(target: str) -> bool:
    """Whether the operator draws random numbers: then it must run once, in order, in one stage only.

    A function of the user's may draw them.
    """
    if is_function(target):
        return True
    function = resolve_target(target)
    return isinstance(function, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in function.tags


def written_arguments(operation: Operation) -> tuple[Argument, ...]:
    """The arguments that the call changes in place."""
    function = resolve_target(operation.target)
    if not isinstance(function, torch._ops.OpOverload):
        return ()
    keywords = dict(operation.kwargs)
    written = []
    for position, declared in enumerate(function._schema.arguments):
        if declared.alias_info is not None and declared.alias_info.is_write:
            if position < len(operation.args):
                written.append(operation.args[position])
            elif declared.name in keywords:
                written.append(keywords[declared.name])
    return tuple(written)
