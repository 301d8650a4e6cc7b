"""Generates the Python source of a span, and compiles it to a function.

In: the operations of a span, and how tensors enter and leave it. Out: a function of a list of weights, a device and the
inputs. Generated code needs no interpretation of each operation, frees every value after its last use (so that only
what autograd saved stays), and shows its lines in a traceback.
"""

import linecache
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ravnest.splitting.program import (
    Argument,
    Autocast,
    Context,
    Grad,
    SpanCode,
    StageDevice,
    Symbol,
    Value,
    ValueSpec,
    Weight,
    resolve_target,
)

SpanFunction = Callable[[list[Tensor], torch.device, tuple[Tensor, ...]], tuple[Tensor, ...]]


def generate(
    code: SpanCode,
    inputs: Sequence[ValueSpec],
    outputs: Sequence[ValueSpec],
    weights: Sequence[str],
    *,
    outputs_travel: bool,
) -> str:
    """The source of a function `stage(_weights, _device, _inputs) -> tuple of tensors`.

    code: the operations. inputs, outputs: how the tensors look. weights: the names, in the order of `_weights`.
    outputs_travel: whether outputs are made contiguous, as they are for another stage.
    """
    slots = {name: position for position, name in enumerate(weights)}
    names = _Names(slots)
    lines = ["def stage(_weights, _device, _inputs):"]
    if inputs:
        lines.append(f"    ({''.join(names.local(item) + ', ' for item in code.inputs)}) = _inputs")
    lines.append("    del _inputs")
    for item, spec in zip(code.inputs, inputs, strict=True):
        local = names.local(item)
        if spec.is_int:
            lines.append(f"    {local} = int({local})")
        elif spec.order:
            lines.append(f"    {local} = {local}.permute({_inverse(spec.order)})")
    for source in code.symbols:
        holder = names.local(code.inputs[source.position])
        lines.append(f"    {names.local(Symbol(source.symbol))} = {holder}.shape[{source.dim}]")
    lines += _body(code, names)
    results = []
    for result, spec in zip(code.outputs, outputs, strict=True):
        expression = names.render(result)
        if spec.is_int:
            expression = f"torch.tensor({expression}, dtype=torch.int64, device=_device)"
        elif outputs_travel:
            permuted = f".permute({spec.order})" if spec.order else ""
            expression = f"{expression}{permuted}.contiguous()"
        results.append(expression)
    lines.append(f"    return ({''.join(result + ', ' for result in results)})")
    return "\n".join(lines) + "\n"


def compile_span(source: str, code: SpanCode, title: str) -> SpanFunction:
    """The function that a generated source defines. `title` names it in tracebacks."""
    filename = f"<ravnest {title}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    scope: dict[str, Any] = {"torch": torch}
    for target in {operation.target for operation in code.operations}:
        scope[_function_name(target)] = resolve_target(target)
    exec(compile(source, filename, "exec"), scope)
    function: SpanFunction = scope["stage"]
    return function


class _Names:
    def __init__(self, slots: dict[str, int]) -> None:
        self._slots = slots

    def local(self, item: object) -> str:
        match item:
            case Value(name):
                return f"v_{_identifier(name)}"
            case Symbol(name):
                return f"s_{_identifier(name)}"
        raise AssertionError(f"{item!r} has no local variable")

    def render(self, argument: Argument) -> str:
        match argument:
            case Value() | Symbol():
                return self.local(argument)
            case Weight(name):
                return f"_weights[{self._slots[name]}]"
            case StageDevice():
                return "_device"
            case tuple():
                return "[" + ", ".join(self.render(element) for element in argument) + "]"
            case float():
                return (
                    f"float({str(argument)!r})"
                    if argument in (float("inf"), -float("inf")) or argument != argument
                    else repr(argument)
                )
        return repr(argument)


def _body(code: SpanCode, names: _Names) -> list[str]:
    last_use: dict[str, int] = {}
    for position, operation in enumerate(code.operations):
        last_use[operation.name] = position
        for reference in operation.references():
            if isinstance(reference, Value):
                last_use[reference.name] = position
    kept = {result.name for result in code.outputs if isinstance(result, Value)}
    dying: dict[int, list[str]] = {}
    for name, position in last_use.items():
        if name not in kept:
            dying.setdefault(position, []).append(names.local(Value(name)))

    lines: list[str] = []
    contexts: tuple[Context, ...] = ()
    for position, operation in enumerate(code.operations):
        if operation.contexts != contexts:
            contexts = operation.contexts
            lines += [f"{'    ' * (depth + 1)}with {_context(c)}:" for depth, c in enumerate(contexts)]
        arguments = [names.render(argument) for argument in operation.args]
        arguments += [f"{key}={names.render(argument)}" for key, argument in operation.kwargs]
        call = f"{_function_name(operation.target)}({', '.join(arguments)})"
        line = f"{names.local(Value(operation.name))} = {call}"
        if position in dying:
            line += f"; {' = '.join(sorted(dying[position]))} = None"
        lines.append("    " * (len(contexts) + 1) + line)
    return lines


def _context(context: Context) -> str:
    match context:
        case Grad(enabled):
            return f"torch.set_grad_enabled({enabled})"
        case Autocast(dtype, enabled, cache_enabled):
            return f"torch.autocast(_device.type, {dtype}, {enabled}, {cache_enabled})"


def _identifier(name: str) -> str:
    return "".join(character if character.isalnum() else "_" for character in name)


def _function_name(target: str) -> str:
    return f"f_{_identifier(target)}"


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(order.index(dim) for dim in range(len(order)))
