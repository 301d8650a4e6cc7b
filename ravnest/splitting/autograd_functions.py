"""Carries a torch.autograd.Function of the user's into a captured graph as one operation, with its own backward.

torch.export follows a function's forward operator by operator and loses its backward. So while a model is captured,
applying a function is intercepted: the export records one operator, made for that function and those kinds of
arguments, which applies the function. In a program the operation is called `module:Class.apply`. A stage imports the
module and applies the function as the model does, so that forward, backward and what it saves between them are the
user's own. Whatever its forward draws from torch comes from the stage's stream of random numbers.

In: the functions that a forward applies, as they are applied. Out: operators that an export records, the names of
operations, and the callables behind these names.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import _SingleLevelFunction

from ravnest.errors import ModelNotSplittable
from ravnest.factories import imported, name_to_import

NAMESPACE = "ravnest_functions"
"""That of the operators which stand for functions while a model is captured."""
_APPLY = ".apply"

Handle = Callable[[type[Function], tuple[Any, ...]], Any]
"""What is done instead of applying a function to arguments."""

_operators: dict[tuple[type[Function], tuple[str, ...]], Any] = {}
_functions: dict[str, type[Function]] = {}
_library: list[torch.library.Library] = []


def is_function(target: str) -> bool:
    """Whether an operation of this target applies a function of the user's."""
    return ":" in target and target.endswith(_APPLY)


def module_of(target: str) -> str:
    """The module that a stage has to import before it can resolve such a target."""
    return target.partition(":")[0]


def target_of(operator: str) -> str:
    """The target of an operation that an export recorded as the operator `ravnest_functions.NAME.default`."""
    return target_of_function(_functions[operator.split(".")[1]])


def resolve_function(target: str) -> Callable[..., tuple[Tensor, ...]]:
    """What applies the function behind a target; it returns a tuple, also of a single tensor.

    Raises ModelNotSplittable where its module is not imported here, or has no such function.
    """
    module, _, path = target.removesuffix(_APPLY).partition(":")
    found = imported(module, path)
    if not (isinstance(found, type) and issubclass(found, Function)):
        raise ModelNotSplittable(f"there is no torch.autograd.Function {path!r} in a module {module!r} imported here")
    apply: Any = found.apply

    def applied(*args: Any) -> tuple[Tensor, ...]:
        result = apply(*args)
        return (result,) if isinstance(result, Tensor) else tuple(result)

    return applied


@contextmanager
def intercepted(handle: Handle) -> Iterator[None]:
    """While it runs, `handle` is called for each function that is not torch's and that this thread applies.

    What the function's own forward applies is part of it, and is not intercepted.
    """
    thread, inside = threading.get_ident(), False

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        torchs = cls.__module__.partition(".")[0] == "torch"
        if inside or torchs or threading.get_ident() != thread:
            return super(_SingleLevelFunction, cls).apply(*args, **kwargs)
        if kwargs:
            raise ModelNotSplittable(f"{_named(cls)} is applied with keywords: give it its arguments by position")
        inside = True
        try:
            return handle(cls, args)
        finally:
            inside = False

    # Function.apply calls that of its base class, so that `f = MyFunction.apply` at the head of a file is met, too.
    _SingleLevelFunction.apply = classmethod(apply)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del _SingleLevelFunction.apply  # type: ignore[attr-defined]


@contextmanager
def as_operators() -> Iterator[None]:
    """While it runs, a function that is applied reaches an export as one operator.

    Raises ModelNotSplittable, where a function is applied, for one that no stage could import, and for arguments and
    results that a program cannot hold.
    """

    def handle(function: type[Function], args: tuple[Any, ...]) -> Any:
        kinds = tuple(_kind(function, argument) for argument in args)
        operator = _operators.get((function, kinds)) or _register(function, kinds)
        results = operator(*args)
        return results[0] if len(results) == 1 else tuple(results)

    with intercepted(handle):
        yield


def _register(function: type[Function], kinds: tuple[str, ...]) -> Any:
    target_of_function(function)  # one that cannot be named is refused here
    if not _library:
        _library.append(torch.library.Library(NAMESPACE, "FRAGMENT"))  # type: ignore[no-untyped-call]
    name = f"function_{len(_operators)}"
    declared = ", ".join(f"{kind} a{place}" for place, kind in enumerate(kinds))
    _library[0].define(f"{name}({declared}) -> Tensor[]")  # type: ignore[no-untyped-call]

    def kernel(*args: Any) -> list[Tensor]:
        tensors = [argument for argument in args if isinstance(argument, Tensor)]
        before = [tensor._version for tensor in tensors]
        result = super(_SingleLevelFunction, function).apply(*args)  # type: ignore[misc]
        if [tensor._version for tensor in tensors] != before:
            raise ModelNotSplittable(f"{_named(function)} changes an argument in place: let it return a new tensor")
        results = [result] if isinstance(result, Tensor) else list(result) if isinstance(result, tuple) else [result]
        for each in results:
            if not isinstance(each, Tensor):
                said = f"{_named(function)} returns {type(each).__name__}, and stages carry tensors only"
                raise ModelNotSplittable(f"{said}: return what is no tensor from another function")
        return results

    for key in ("Autograd", "CompositeExplicitAutograd"):
        _library[0].impl(name, kernel, key)  # type: ignore[no-untyped-call]
    _functions[name] = function
    operator = getattr(getattr(torch.ops, NAMESPACE), name).default
    _operators[function, kinds] = operator
    return operator


_KINDS: Sequence[tuple[Any, str]] = (
    (Tensor, "Tensor"),
    (bool, "bool"),
    ((int, torch.SymInt), "SymInt"),
    (float, "float"),
    (str, "str"),
    (torch.dtype, "ScalarType"),
    (torch.device, "Device"),
)


def _kind(function: type[Function], argument: object) -> str:
    """How an argument stands in the declaration of an operator."""
    if argument is None:
        return "Tensor?"
    for kind, declared in _KINDS:
        if isinstance(argument, kind):
            return declared
        if isinstance(argument, list | tuple) and argument and all(isinstance(each, kind) for each in argument):
            return f"{declared}[]"
    said = f"{_named(function)} is applied to a {type(argument).__name__}, which a stage's program cannot hold"
    raise ModelNotSplittable(f"{said}: give it tensors, numbers, truth values or text")


def _named(function: type[Function]) -> str:
    return f"{function.__module__}.{function.__qualname__}, a torch.autograd.Function,"


def target_of_function(function: type[Function]) -> str:
    """The target of an operation that applies a function. Raises ModelNotSplittable where no stage could import it."""
    module, path = name_to_import(function), function.__qualname__
    if imported(module, path) is not function:
        said = f"{_named(function)} has no name in its module by which a stage could import it"
        raise ModelNotSplittable(f"{said}: define it at the head of its file")
    return f"{module}:{path}{_APPLY}"
