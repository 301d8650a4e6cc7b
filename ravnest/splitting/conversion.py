"""From torch's ExportedProgram to plain operations (program.py).

In: one mode of a model as torch.export gives it. Out: the same computation as a `Converted`. Asserts are dropped;
sub-graphs that only carry a context (no_grad, autocast) are inlined; sizes that are the batch become symbols; devices
become the stage's; operations whose result nothing reads are left out, and buffers are assigned as early as they can
be. Any other sub-graph, and any size that depends on data, is refused.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule, Node

from ravnest.errors import ModelNotSplittable
from ravnest.factories import is_library
from ravnest.splitting.assignments import assign_early, count_apart
from ravnest.splitting.autograd_functions import NAMESPACE, target_of
from ravnest.splitting.exporting import UnfitError
from ravnest.splitting.model_source import aliases, extra_states
from ravnest.splitting.output_structure import OutputNode, OutputTree, leaf_names, structure_of
from ravnest.splitting.program import (
    Argument,
    Autocast,
    Context,
    Grad,
    ModelGraph,
    Operation,
    Reference,
    StageDevice,
    Symbol,
    TensorSpec,
    Value,
    Weight,
    is_random,
    written_arguments,
)

_LARGEST_CONSTANTS_BYTES = 1 << 20
_ASSERTS = ("aten._assert", "aten.sym_constrain_range", "aten._guards")
_LITERALS = (type(None), bool, int, float, complex, str, torch.dtype, torch.layout, torch.memory_format)

_LINE = re.compile(r'File "([^"]+)", line (\d+)')

Size = int | str | None
"""A dimension: fixed, a symbol's name, or an expression of symbols (None)."""


@dataclass
class Converted:
    """One mode of a model. Weights are listed in the model's own order."""

    graph: ModelGraph
    inputs: tuple[str, ...]
    parameters: dict[str, TensorSpec] = field(default_factory=dict)
    buffers: dict[str, TensorSpec] = field(default_factory=dict)
    constants: dict[str, Tensor] = field(default_factory=dict)
    shapes: dict[str, tuple[Size, ...]] = field(default_factory=dict)
    """The shape of each value that is one tensor."""
    integers: frozenset[str] = frozenset()
    """The names of the values that are integers."""
    output_names: tuple[str, ...] = ()
    output: OutputTree = 0
    """How the outputs stand in what the model returns."""


Select = Callable[[tuple[str, ...]], tuple[str, ...]]
"""Chooses, from the names of all tensors that a model returns, those that are wanted."""


def convert(
    model: nn.Module, exported: ExportedProgram, inputs: tuple[str, ...], select: Select | None = None
) -> Converted:
    """Convert one exported mode of `model`, whose forward takes `inputs` (names, in order).

    With `select`, only the outputs that it chooses are computed: a single one becomes the output itself, and several a
    dict by name.
    Raises ModelNotSplittable for what stages cannot run, UnfitError for what another way of exporting may avoid.
    """
    return _Converter(model, exported, inputs).run(select)


class _Converter:
    def __init__(self, model: nn.Module, exported: ExportedProgram, inputs: tuple[str, ...]) -> None:
        self.model = model
        self.exported = exported
        self.result = Converted(ModelGraph((), ()), inputs)
        self.operations: list[Operation] = []
        self.symbols: dict[Any, str] = {}
        self.integers: set[str] = set()
        self.first_names = {other: name for name, others in aliases(model).items() for other in others}

    def run(self, select: Select | None) -> Converted:
        bindings = self._bind_inputs()
        outputs = self._walk(self.exported.graph_module, bindings, ())
        spec = self.exported.call_spec.out_spec
        assert spec is not None
        names = leaf_names(spec)
        results = outputs[len(outputs) - len(names) :]  # mutated buffers come before the user's outputs
        returned = dict(zip(names, results, strict=True))
        found = tuple(name for name, output in returned.items() if output is not None)
        chosen = found if select is None else select(found)
        kept: list[Reference] = []
        places: list[int | None] = []
        for name, output in returned.items():
            if output is None or name not in chosen:
                places.append(None)
                continue
            if not isinstance(output, Value | Weight | Symbol):
                raise ModelNotSplittable(f"output {name!r} is the constant {output!r}; return tensors only")
            places.append(len(kept))
            kept.append(output)
            self.result.output_names += (name,)
        if not kept:
            raise ModelNotSplittable("the model returns no tensor")
        if select is None:
            self.result.output = structure_of(spec, places)
        elif len(kept) > 1:
            self.result.output = OutputNode("dict", tuple(range(len(kept))), context=self.result.output_names)
        counted = count_apart(self.operations, self.result.buffers, kept)
        operations = _without_dead(assign_early(counted), kept)
        self.result.graph = ModelGraph(tuple(operations), tuple(kept))
        self.result.integers = frozenset(self.integers)
        return self.result

    def _bind_inputs(self) -> dict[Node, Argument]:
        placeholders = {node.name: node for node in self.exported.graph.nodes if node.op == "placeholder"}
        bindings: dict[Node, Argument] = {}
        user_inputs = iter(self.result.inputs)
        frozen = {name for name, p in self.model.named_parameters() if not p.requires_grad}
        for spec in self.exported.graph_signature.input_specs:
            node = placeholders[spec.arg.name]
            value = node.meta.get("val")
            if spec.kind is InputKind.USER_INPUT:
                name = next(user_inputs)
                if not isinstance(value, Tensor):
                    raise ModelNotSplittable(f"input {name!r} is not a tensor")
                for dim, size in enumerate(value.shape):
                    expression = _expression(size)
                    if expression is not None and expression.is_Symbol:
                        self.symbols.setdefault(expression, f"{name}.{dim}")
                bindings[node] = Value(name)
                self.result.shapes[name] = self._sizes(value)
                continue
            assert spec.target is not None
            if spec.target in self.first_names:
                bindings[node] = Weight(self.first_names[spec.target])
                continue
            bindings[node] = Weight(spec.target)
            if spec.kind is InputKind.CONSTANT_TENSOR:
                self._add_constant(spec.target)
                continue
            assert isinstance(value, Tensor)
            shape = tuple(int(size) for size in value.shape)
            if spec.kind is InputKind.PARAMETER:
                trains = spec.target not in frozen
                self.result.parameters[spec.target] = TensorSpec(spec.target, shape, value.dtype, trains)
            elif spec.kind is InputKind.BUFFER:
                self.result.buffers[spec.target] = TensorSpec(
                    spec.target, shape, value.dtype, False, bool(spec.persistent)
                )
            else:
                raise ModelNotSplittable(f"the model needs {spec.target!r}, a {spec.kind.name.lower()}")
        for name, state in extra_states(self.model).items():
            self.result.buffers[name] = TensorSpec(name, tuple(state.shape), state.dtype, False)
        return bindings

    def _add_constant(self, name: str) -> None:
        value = self.exported.constants[name]
        if _is_attribute(self.model, name):
            self.result.buffers[name] = TensorSpec(name, tuple(value.shape), value.dtype, False, persistent=False)
            return
        if value.device.type == "meta" or isinstance(value, torch._subclasses.FakeTensor):
            raise UnfitError(f"constant {name!r} has no value on the meta device")
        constants = self.result.constants
        constants[name] = value.detach().cpu().clone()
        if sum(tensor.nbytes for tensor in constants.values()) > _LARGEST_CONSTANTS_BYTES:
            raise ModelNotSplittable(
                f"the model's forward makes constant tensors of more than {_LARGEST_CONSTANTS_BYTES} bytes "
                f"(last {name!r}, {value.nbytes} bytes); register them as buffers"
            )

    def _walk(
        self, module: GraphModule, bindings: dict[Node, Argument], contexts: tuple[Context, ...]
    ) -> tuple[Argument, ...]:
        """Append the operations of a graph, and return what its output node lists."""
        for node in module.graph.nodes:
            if node.op == "output":
                outputs = self._argument(node.args[0], bindings)
                return outputs if isinstance(outputs, tuple) else (outputs,)
            if node.op == "call_function":
                self._call(module, node, bindings, contexts)
            elif node.op not in ("placeholder", "get_attr"):
                raise ModelNotSplittable(f"unexpected {node.op} {node.target!r} in the exported graph")
        raise ModelNotSplittable("the exported graph has no output")

    def _call(
        self, module: GraphModule, node: Node, bindings: dict[Node, Argument], contexts: tuple[Context, ...]
    ) -> None:
        target = str(node.target)
        if target.startswith(_ASSERTS):
            return
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            context, body, operands = _context_of(module, node)
            inner = dict(zip((n for n in body.graph.nodes if n.op == "placeholder"), operands, strict=True))
            inner = {place: self._argument(operand, bindings) for place, operand in inner.items()}
            bindings[node] = self._walk(body, inner, (*contexts, context))
            return
        if node.target.__name__ == "getitem" and isinstance(bindings.get(node.args[0]), tuple):  # type: ignore
            bindings[node] = bindings[node.args[0]][node.args[1]]  # type: ignore[index]
            return
        value = node.meta.get("val")
        expression = _expression(value)
        if expression is not None:
            if expression in self.symbols:
                bindings[node] = Symbol(self.symbols[expression])
                return
            self._refuse_data_dependent(expression, node)
            self.integers.add(node.name)
        elif isinstance(value, Tensor):
            self.result.shapes[node.name] = self._sizes(value, node)
        args = tuple(self._argument(argument, bindings) for argument in node.args)
        kwargs = tuple(
            (key, self._argument(argument, bindings))
            for key, argument in node.kwargs.items()
            if not (key == "pin_memory" and argument is False)
        )
        name = _target_name(node)
        _refuse_sparse(node)
        if name == "aten.detach_.default":  # of a constant just lifted: nothing else shares it
            name = "aten.detach.default"
        bindings[node] = Value(node.name)
        self.operations.append(Operation(node.name, name, args, kwargs, contexts, _scope(node), _line(node)))

    def _argument(self, argument: Any, bindings: Mapping[Node, Argument]) -> Argument:
        if isinstance(argument, Node):
            if argument not in bindings:
                raise ModelNotSplittable(f"the exported graph reads {argument.name!r} in an unknown way")
            return bindings[argument]
        if isinstance(argument, list | tuple):
            return tuple(self._argument(element, bindings) for element in argument)
        if isinstance(argument, torch.device):
            return StageDevice()
        if isinstance(argument, _LITERALS):
            return argument
        raise ModelNotSplittable(f"the exported graph has an argument of type {type(argument).__name__}")

    def _sizes(self, tensor: Tensor, node: Node | None = None) -> tuple[Size, ...]:
        sizes: list[Size] = []
        for size in tensor.shape:
            expression = _expression(size)
            if expression is None:
                sizes.append(int(size))
            else:
                self._refuse_data_dependent(expression, node)
                sizes.append(self.symbols.get(expression))
        return tuple(sizes)

    def _refuse_data_dependent(self, expression: Any, node: Node | None) -> None:
        if expression.free_symbols - self.symbols.keys():
            where = f" in {_scope(node) or 'the model'} ({node.target})" if node is not None else ""
            raise ModelNotSplittable(f"a size{where} depends on data; use masks instead of selecting by value")


def _without_dead(operations: list[Operation], outputs: Iterable[Reference]) -> list[Operation]:
    """Drop operations whose result nothing reads. Random ones stay: later ones must draw the same numbers."""
    needed: set[Reference] = set(outputs)
    kept = []
    for operation in reversed(operations):
        if Value(operation.name) in needed or written_arguments(operation) or is_random(operation.target):
            needed.update(operation.references())
            kept.append(operation)
    return kept[::-1]


def _expression(size: object) -> Any:
    """The symbolic expression of a size that is not fixed, else None."""
    return size.node.expr if isinstance(size, torch.SymInt) else None


def _context_of(module: GraphModule, node: Node) -> tuple[Context, GraphModule, tuple[Any, ...]]:
    name = str(node.target)
    if name == "wrap_with_set_grad_enabled":
        enabled, place, *operands = node.args
        context: Context = Grad(bool(enabled))
    elif name == "wrap_with_autocast":
        _, dtype, on, cache, place, *operands = node.args
        assert dtype is None or isinstance(dtype, torch.dtype)
        context = Autocast(dtype, bool(on), cache is None or bool(cache))
    else:
        raise ModelNotSplittable(f"{_scope(node) or 'the model'} uses {name}, which stages cannot run yet")
    assert isinstance(place, Node)
    body = module.get_submodule(str(place.target))
    assert isinstance(body, GraphModule)
    return context, body, tuple(operands)


def _target_name(node: Node) -> str:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target_of(str(target)) if target.namespace == NAMESPACE else str(target)
    assert callable(target)
    return f"{target.__module__}:{target.__name__}"


def _refuse_sparse(node: Node) -> None:
    """Stages keep, send and average gradients as dense tensors."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return
    names = [argument.name for argument in node.target._schema.arguments]
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    if given.get("sparse") is True:
        raise ModelNotSplittable(
            f"{_scope(node) or 'the model'} makes sparse gradients ({node.target}), which stages cannot send or"
            " average: leave out `sparse=True`"
        )


def _scope(node: Node) -> str:
    stack = node.meta.get("nn_module_stack")
    path = str(list(stack.values())[-1][0]) if stack else ""
    return "" if path.startswith("_") else path


def _line(node: Node) -> str:
    """`file:line` of the user's own code that made the call, else of the library's; empty where it is not known."""
    lines = _LINE.findall(node.meta.get("stack_trace") or "")
    own = [(file, line) for file, line in lines if not is_library(file)]
    return next((f"{file}:{line}" for file, line in (own or lines)[-1:]), "")


def _is_attribute(model: nn.Module, name: str) -> bool:
    owner: object = model
    for part in name.split("."):
        if not hasattr(owner, part):
            return False
        owner = getattr(owner, part)
    return isinstance(owner, Tensor)
