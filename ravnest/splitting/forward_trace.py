"""What a model's forward does in Python, operator by operator, without values and without torch.export.

In: a model on the meta device and a micro-batch. Out: a `Converted` whose operations are those that reached torch's
dispatcher, in order, with the module that called each, and the weights and results that it read. Tracing eighty layers
takes seconds where exporting them takes minutes. What it lacks for stages is what an export adds: sizes that vary with
the batch, and operators as autograd sees them. It serves to compare two models of the same code (thinning.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from ravnest.errors import ModelNotSplittable
from ravnest.splitting.autograd_functions import intercepted, target_of_function
from ravnest.splitting.conversion import Converted
from ravnest.splitting.exporting import quiet
from ravnest.splitting.program import (
    Argument,
    Grad,
    ModelGraph,
    Operation,
    Reference,
    StageDevice,
    TensorSpec,
    Value,
    Weight,
)

_LITERALS = (type(None), bool, int, float, complex, str, torch.dtype, torch.layout, torch.memory_format)


def trace(model: nn.Module, args: tuple[Tensor, ...], kwargs: Mapping[str, Tensor]) -> Converted:
    """The operators that the model's forward calls in the mode that it is in (training or evaluation).

    model: on the meta device; its plain attributes may change, as by any forward. args, kwargs: a micro-batch, of which
    only shapes and dtypes count. Raises ModelNotSplittable for what cannot be compared; whatever the forward raises
    without values is passed on.
    """
    given = [tensor.to("meta") for tensor in args]
    named = {name: tensor.to("meta") for name, tensor in kwargs.items()}
    tracing = _Tracing(model, {f"input.{key}": tensor for key, tensor in (*enumerate(given), *named.items())})
    with quiet(), _as_exported(), _without_autocast(), tracing.noting_modules(), intercepted(tracing.applied), tracing:
        output = model(*given, **named)
    return tracing.traced(output)


@contextmanager
def _as_exported() -> Iterator[None]:
    """While it runs, torch.compiler.is_exporting() is true: the forward takes the branches that an export takes."""
    compiler: Any = torch.compiler  # its flags are private, and torch.export sets them by a private function, too
    flags = "_is_compiling_flag", "_is_exporting_flag"
    before = [getattr(compiler, flag) for flag in flags]
    try:
        for flag in flags:
            setattr(compiler, flag, True)
        yield
    finally:
        for flag, was in zip(flags, before, strict=True):
            setattr(compiler, flag, was)


@contextmanager
def _without_autocast() -> Iterator[None]:
    """While it runs, entering torch.autocast raises ModelNotSplittable: it leaves no trace in operators on the meta
    device, so blocks that enter it and blocks that do not would look alike. Entering it disabled changes nothing.
    """
    enter = torch.autocast.__enter__

    def entered(self: Any) -> Any:
        if self._enabled:
            raise ModelNotSplittable("the forward enters torch.autocast, which the meta device does not show")
        return enter(self)  # type: ignore[no-untyped-call]

    torch.autocast.__enter__ = entered  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.autocast.__enter__ = enter  # type: ignore[method-assign]


class _Tracing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._model = model
        self._inputs = tuple(inputs)
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._scopes = [""]
        self._operations: list[Operation] = []
        self._constants: dict[str, Tensor] = {}
        self._known: dict[int, Reference] = {}
        self._held: list[Tensor] = []  # keeps tensors alive, so that their ids stay distinct
        for name, tensor in _weights(model):
            self._know(tensor, Weight(name))
        for name, tensor in inputs.items():
            self._know(tensor, Value(name))

    @contextmanager
    def noting_modules(self) -> Iterator[None]:
        """While it runs, the path of the module whose forward runs is known."""

        def enter(module: nn.Module, _: Any) -> None:
            self._scopes.append(self._paths.get(id(module), self._scopes[-1]))

        def leave(module: nn.Module, _: Any, __: Any) -> None:
            self._scopes.pop()

        hooks = register_module_forward_pre_hook(enter), register_module_forward_hook(leave)
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def applied(self, function: type[Function], args: tuple[Any, ...]) -> Any:
        """Notes a function of the user's before the operators of its forward: only it knows what its backward reads."""
        name = f"result.{len(self._operations)}"
        target = target_of_function(function)
        self._operations.append(Operation(name, target, self._argument(args), (), (), self._scopes[-1]))
        result = function.apply(*args)  # type: ignore[no-untyped-call]
        self._know_parts(name, result if isinstance(result, tuple) else (result,))
        return result

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = f"result.{len(self._operations)}"
        read = self._argument(args), tuple((key, self._argument(kwargs[key])) for key in sorted(kwargs))
        contexts = (Grad(torch.is_grad_enabled()),)
        result = func(*args, **kwargs)
        self._operations.append(Operation(name, str(func), *read, contexts, self._scopes[-1]))
        if isinstance(result, Tensor):
            self._know(result, Value(name))
        elif isinstance(result, list | tuple):
            self._know_parts(name, result)
        return result

    def traced(self, output: Any) -> Converted:
        """All that was noted, and what the forward returned."""
        results = tuple(self._argument(leaf) for leaf in torch.utils._pytree.tree_leaves(output))
        parameters = {
            name: TensorSpec(name, tuple(one.shape), one.dtype, one.requires_grad)
            for name, one in self._model.named_parameters()
        }
        graph = ModelGraph(tuple(self._operations), results)
        return Converted(graph, self._inputs, parameters, constants=self._constants)

    def _know(self, tensor: Tensor, reference: Reference) -> None:
        if id(tensor) not in self._known:  # what is changed in place stays what it was
            self._known[id(tensor)] = reference
            self._held.append(tensor)

    def _know_parts(self, name: str, items: Sequence[Any]) -> None:
        for place, item in enumerate(items):
            if isinstance(item, Tensor) and id(item) not in self._known:
                part = f"result.{len(self._operations)}"
                self._operations.append(Operation(part, "part", (Value(name), place), (), (), self._scopes[-1]))
                self._know(item, Value(part))

    def _argument(self, argument: Any) -> Argument:
        match argument:
            case Tensor():
                if id(argument) not in self._known:
                    self._add_constant(argument)
                return self._known[id(argument)]
            case list() | tuple():
                return tuple(self._argument(element) for element in argument)
            case torch.device():
                return StageDevice()
        if isinstance(argument, _LITERALS):
            return argument
        raise ModelNotSplittable(f"the forward gives an operator a {type(argument).__name__}")

    def _add_constant(self, tensor: Tensor) -> None:
        if tensor.device.type == "meta":
            raise ModelNotSplittable("the forward reads a tensor that comes from nowhere")
        name = f"constant.{len(self._constants)}"
        self._constants[name] = tensor.detach()
        self._know(tensor, Weight(name))


def _weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor):
                yield f"{path}.{name}" if path else name, value
