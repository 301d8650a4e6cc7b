"""A captured model and its eager form in float32, where they compute with numbers of 16 bits.

In: programs, and a module on the CPU with values. Out: the same with float32 in the place of every shorter type, so
that both can be compared as strictly as any float32 model. Between numbers of 16 bits an operation that changes a
result by less than some roundings cannot be told from a kernel that adds in another order.

A program is plain data, so that its types are replaced as they stand there. A module's own code names types where it
likes (`x.to(torch.bfloat16)`, torch.autocast): `computing_widely` replaces those that reach torch's dispatcher.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from ravnest.splitting.model_source import computed
from ravnest.splitting.program import (
    Argument,
    Autocast,
    Operation,
    SpanCode,
    StageProgram,
    TensorSpec,
    ValueSpec,
    is_narrow,
)

Spec = TypeVar("Spec", TensorSpec, ValueSpec)


def is_narrow_anywhere(program: StageProgram) -> bool:
    """Whether weights, inputs or outputs of the program are of a type that is widened."""
    weights, values = program.weight_specs, (*program.inputs, *program.outputs)
    return any(is_narrow(dtype) for dtype in (*(one.dtype for one in weights), *(one.dtype for one in values)))


def narrow_constants(program: StageProgram) -> list[str]:
    """The constants that the forward itself makes of such a type: what they were before rounding is not known."""
    return [name for name, tensor in program.constants if is_narrow(tensor.dtype)]


def widened(program: StageProgram) -> StageProgram:
    """The program with float32 in the place of shorter types; what autocast shortens stays float32."""
    return replace(
        program,
        parameters=tuple(map(_wide_spec, program.parameters)),
        borrowed=tuple(map(_wide_spec, program.borrowed)),
        buffers=tuple(map(_wide_spec, program.buffers)),
        constants=tuple((name, wide(tensor)) for name, tensor in program.constants),
        inputs=tuple(map(_wide_spec, program.inputs)),
        outputs=tuple(map(_wide_spec, program.outputs)),
        train=_wide_code(program.train),
        evaluate=_wide_code(program.evaluate),
    )


def widened_model(model: nn.Module, hold: Callable[[str, Tensor], Tensor]) -> nn.Module:
    """A copy of the model, which is not changed, whose shorter weights and buffers are float32.

    hold: says where a parameter's wide values are kept, of which one is made at a time.
    """
    attributes = (value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor))
    made: dict[int, Any] = dict(computed(model))
    made |= {id(tensor): wide(tensor.detach()) for tensor in (*model.buffers(), *attributes) if is_narrow(tensor.dtype)}
    for name, parameter in model.named_parameters():
        made[id(parameter)] = parameter
        if is_narrow(parameter.dtype):
            kept = hold(f"{name} in float32", wide(parameter.detach()))
            made[id(parameter)] = nn.Parameter(kept, parameter.requires_grad)
    return copy.deepcopy(model, made)


def wide(tensor: Tensor) -> Tensor:
    """The tensor, in float32 where its type is shorter."""
    return tensor.to(_wide_type(tensor.dtype))


def computing_widely() -> TorchDispatchMode:
    """A context in which operations that ask for a shorter type are given float32."""
    return _Widening()


class _Widening(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(_wide_literal, (args, kwargs or {}))
        return func(*args, **kwargs)


def _wide_type(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if is_narrow(dtype) else dtype


def _wide_literal(argument: Any) -> Any:
    return _wide_type(argument) if isinstance(argument, torch.dtype) else argument


def _wide_spec(spec: Spec) -> Spec:
    return replace(spec, dtype=_wide_type(spec.dtype))


def _wide_code(code: SpanCode) -> SpanCode:
    return replace(code, operations=tuple(map(_wide_operation, code.operations)))


def _wide_operation(operation: Operation) -> Operation:
    contexts = tuple(
        replace(context, enabled=False) if isinstance(context, Autocast) else context for context in operation.contexts
    )
    keywords = tuple((key, _wide_argument(value)) for key, value in operation.kwargs)
    return replace(operation, args=_wide_argument(operation.args), kwargs=keywords, contexts=contexts)


def _wide_argument(argument: Argument) -> Argument:
    if isinstance(argument, tuple):
        return tuple(map(_wide_argument, argument))
    return _wide_literal(argument)
