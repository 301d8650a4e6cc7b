"""A captured graph as plain data: operations in execution order, their arguments and the contexts they run
in.

Plain data prints, compares, hashes and travels; torch.fx graphs do none of these reliably. This module knows
nothing of where graphs come from (`exported`), what they cost (`measure`) or how they are run (`codegen`).
"""

import importlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ravnest.errors import ModelNotSplittable

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
    """The device that the stage runs on, wherever the graph named one."""


@dataclass(frozen=True)
class Grad:
    """Context: gradients are recorded or not (torch.no_grad, torch.enable_grad)."""

    enabled: bool


@dataclass(frozen=True)
class Autocast:
    """Context: torch.autocast on the stage's kind of device."""

    dtype: torch.dtype | None
    enabled: bool
    cache_enabled: bool


Context = Grad | Autocast
Reference = Value | Weight | Symbol
Argument = Any
"""A Reference, a StageDevice, a literal (None, bool, int, float, complex, str, dtype, layout, memory format),
or a tuple of these."""


@dataclass(frozen=True)
class Operation:
    """One call. `target` is `namespace.operator.overload` of torch.ops or `module:function` of Python."""

    name: str
    target: str
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...] = ()
    contexts: tuple[Context, ...] = ()
    scope: str = ""
    """Path of the module whose forward made the call, for names in messages and for aligning modes."""

    def references(self) -> Iterator[Reference]:
        """Everything the call reads, in argument order; repeats are kept."""
        for argument in (*self.args, *(value for _, value in self.kwargs)):
            yield from references(argument)


@dataclass(frozen=True)
class Graph:
    """A whole model in one mode."""

    operations: tuple[Operation, ...]
    outputs: tuple[Reference, ...]


def references(argument: Argument) -> Iterator[Reference]:
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
    """The function behind a target's name. Raises ModelNotSplittable where this machine has no such
    operator."""
    found: Any
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
    """Whether the operator draws random numbers (so it must run once, in order, in one stage only)."""
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
