"""A stage as a torch module: the weights of its span under their original names, and one function for each mode.

In: a StageProgram and values for its weights. Out: a module whose `train()` and `eval()` choose the function that
`forward` runs. It knows nothing of micro-batches, versions or messages.

The two functions are generated as Python source, and compiled. They take a list of weights, a device and the inputs.
Generated code needs no interpretation of each operation, frees every value after its last use (so that only what
autograd saved stays), and shows its lines in a traceback.
"""

import linecache
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from ravnest.errors import InvalidInput
from ravnest.splitting.forgotten_units import run_forgetting
from ravnest.splitting.output_structure import rebuilt
from ravnest.splitting.program import (
    LOSS_MODULE,
    Argument,
    Autocast,
    Context,
    Grad,
    SpanCode,
    StageDevice,
    StageProgram,
    Symbol,
    TensorSpec,
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
        if spec.is_complex:
            lines.append(f"    {local} = torch.view_as_complex({local})")
        if spec.order:
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
            if spec.is_complex:
                expression = f"torch.view_as_real({expression}.resolve_conj())"
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


class StageModule(nn.Module):
    """A module that runs a StageProgram. The keys of its `state_dict()` are a subset of the original model's."""

    def __init__(
        self,
        program: StageProgram,
        weights: Mapping[str, Tensor],
        device: torch.device | str = "cpu",
        *,
        copy: bool = True,
        loss: nn.Module | None = None,
        units: Sequence[tuple[StageProgram, bool]] = (),
    ) -> None:
        """Make the stage of `program` on `device`.

        weights: at least the span's parameters and buffers, by original name; others are ignored.
        loss: the loss's module, where its parameters are among those of the program: it gets them, and its own values
            are dropped.
        copy: False lets the stage own and change the given tensors where they are on `device` already.
        units: the same span unit by unit, where training is to run so, and for each unit whether what it saves for its
            backward is forgotten, and computed again for it.
        Raises InvalidInput naming a weight that is missing or has another shape or dtype.
        """
        super().__init__()
        device = torch.device(device)
        self.program = program
        self.output_needs_gradient = tuple(spec.needs_gradient for spec in program.outputs)
        self._device = device
        # (container, leaf name) of every weight, in the order in which the generated code indexes them.
        self._slots: list[tuple[nn.Module, str]] = []
        self._owners: dict[str, tuple[nn.Module, str]] = {}
        if loss is not None:
            self._modules[LOSS_MODULE] = loss
        for spec in (*program.parameters, *program.borrowed):
            tensor = _checked(spec, weights, device, copy=copy)
            owner, leaf = self._place(spec.name)
            owner._parameters[leaf] = nn.Parameter(tensor, requires_grad=spec.requires_grad)
        for spec in program.buffers:
            tensor = _checked(spec, weights, device, copy=copy)
            owner, leaf = self._place(spec.name)
            owner._buffers[leaf] = tensor
            if not spec.persistent:
                owner._non_persistent_buffers_set.add(leaf)
        self._constants = [tensor.to(device) for _, tensor in program.constants]
        names = [*self._owners, *(name for name, _ in program.constants)]
        self._units = [(self._unit(unit, names), self._learned(unit, names), forgets) for unit, forgets in units]
        self.saved_again: Callable[[int, Sequence[Tensor]], None] = lambda unit, saved: None
        """Is told the number of each unit that runs again, and what it saves."""
        self._passed: list[Tensor] = []
        self._functions = {}
        for training, code in ((True, program.train), (False, program.evaluate)):
            source = generate(code, program.inputs, program.outputs, names, outputs_travel=program.outputs_travel)
            mode = "train" if training else "eval"
            self._functions[training] = compile_span(source, code, f"units {program.start}-{program.end} {mode}")
        super().train()  # a loss may have come in the other mode

    def train(self, mode: bool = True) -> Self:
        """As any module's, but at once where the mode is so already: a stage asks for it before each micro-batch, and a
        walk over the modules of a large one takes longer than a millisecond.
        """
        return self if self.training is mode else super().train(mode)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the span.

        `inputs` are as `program.inputs` lists them: contiguous, and leaves that require a gradient where
        `needs_gradient` says so. Returns a tuple as `program.outputs` lists it, in which a value that only passes
        through is the input itself. Raises InvalidInput for another number of inputs.
        """
        if len(inputs) != len(self.program.inputs):
            wanted = ", ".join(spec.name for spec in self.program.inputs)
            raise InvalidInput(f"the stage takes {len(self.program.inputs)} tensors ({wanted}), got {len(inputs)}")
        tensors: list[Any] = [
            owner._parameters[leaf] if leaf in owner._parameters else owner._buffers[leaf]
            for owner, leaf in self._slots
        ]
        weights = tensors + self._constants
        if not (self._units and self.training):
            return self._functions[self.training](weights, self._device, inputs)
        values = inputs
        self._passed = []
        for number, (function, written, forgets) in enumerate(self._units):
            if forgets:
                self._passed += values
                values = run_forgetting(
                    function, weights, written, self._device, values, partial(self._saved_again, number)
                )
            else:
                values = function(weights, self._device, values)
        return values

    def take_passed(self) -> list[Tensor]:
        """What the forward that ran last keeps in the place of what its units saved: their inputs."""
        passed, self._passed = self._passed, []
        return passed

    def returned(self, outputs: Sequence[Tensor]) -> Any:
        """What the model itself would return, of which the last stage's forward gave the `outputs`."""
        pairs = zip(outputs, self.program.outputs, strict=True)
        return rebuilt(self.program.returned, [int(out) if spec.is_int else out for out, spec in pairs])

    def set_parameter(self, name: str, parameter: nn.Parameter) -> None:
        """Replace a parameter: the next forward uses the new one, graphs already recorded keep the old one.

        Raises InvalidInput where the stage has no such parameter, or it has another shape.
        """
        owner, leaf = self._owners.get(name, (self, ""))
        old = owner._parameters.get(leaf)
        if old is None:
            raise InvalidInput(f"units {self.program.start}-{self.program.end} hold no parameter {name!r}")
        if old.shape != parameter.shape:
            raise InvalidInput(f"{name!r} has shape {tuple(old.shape)}, not {tuple(parameter.shape)}")
        owner._parameters[leaf] = parameter

    def set_buffer(self, name: str, tensor: Tensor) -> None:
        """Replace a buffer: the next forward uses the new one, graphs already recorded keep the old one.

        Raises InvalidInput where the stage has no such buffer, or it has another shape or dtype.
        """
        owner, leaf = self._owners.get(name, (self, ""))
        old = owner._buffers.get(leaf)
        if old is None:
            raise InvalidInput(f"units {self.program.start}-{self.program.end} hold no buffer {name!r}")
        if old.shape != tensor.shape or old.dtype != tensor.dtype:
            raise InvalidInput(f"{name!r} is {old.dtype} {tuple(old.shape)}, not {tensor.dtype} {tuple(tensor.shape)}")
        owner._buffers[leaf] = tensor

    def _saved_again(self, number: int, saved: Sequence[Tensor]) -> None:
        self.saved_again(number, saved)

    def _unit(self, unit: StageProgram, names: Sequence[str]) -> SpanFunction:
        source = generate(unit.train, unit.inputs, unit.outputs, names, outputs_travel=unit.outputs_travel)
        return compile_span(source, unit.train, f"unit {unit.start} train")

    def _learned(self, unit: StageProgram, names: Sequence[str]) -> tuple[int, ...]:
        """The places among all weights of the buffers that a unit's forward may write to. Operators do not declare all
        that they write (batch-norm's statistics), but what they write is saved."""
        learned = {spec.name for spec in unit.buffers if spec.persistent} | {*unit.changed}
        return tuple(place for place, name in enumerate(names) if name in learned)

    def _place(self, name: str) -> tuple[nn.Module, str]:
        # Written into the dictionaries, since a submodule of the original may be called like an attribute here.
        *path, leaf = name.split(".")
        owner: nn.Module = self
        for part in path:
            child = owner._modules.get(part)
            if child is None:
                child = nn.Module()
                owner._modules[part] = child
            owner = child
        self._owners[name] = (owner, leaf)
        self._slots.append((owner, leaf))
        return owner, leaf


def _checked(spec: TensorSpec, weights: Mapping[str, Tensor], device: torch.device, *, copy: bool) -> Tensor:
    tensor = weights.get(spec.name)
    if tensor is None:
        raise InvalidInput(f"the initial weights lack {spec.name!r}", key=spec.name)
    if tuple(tensor.shape) != spec.shape or tensor.dtype != spec.dtype:
        raise InvalidInput(
            f"expected {spec.dtype} of shape {spec.shape}, got {tensor.dtype} of shape {tuple(tensor.shape)}",
            key=spec.name,
        )
    moved = tensor.detach().to(device)
    return moved.clone() if copy and moved.data_ptr() == tensor.data_ptr() else moved
