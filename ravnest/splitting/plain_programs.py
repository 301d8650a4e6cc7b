"""A stage's program as JSON, for a process that is told of it in a file.

In: a StageProgram. Out: numbers, text, lists and mappings, and the way back. Unlike a pickle, what is read can be
nothing else than a program: it runs no code.
"""

import base64
from dataclasses import fields, is_dataclass
from typing import Any, cast

import torch
from torch import Tensor

from ravnest.errors import InvalidInput
from ravnest.splitting.output_structure import OutputNode
from ravnest.splitting.program import (
    Autocast,
    Grad,
    Operation,
    SpanCode,
    StageDevice,
    StageProgram,
    Symbol,
    SymbolSource,
    TensorSpec,
    Value,
    ValueSpec,
    Weight,
)

_CLASSES = {
    kind.__name__: kind
    for kind in (
        *(Autocast, Grad, Operation, OutputNode, SpanCode, StageDevice, StageProgram),
        *(Symbol, SymbolSource, TensorSpec, Value, ValueSpec, Weight),
    )
}
_OF_TORCH = (torch.dtype, torch.layout, torch.memory_format)


def as_plain(program: StageProgram) -> object:
    """The program as json.dumps takes it."""
    return _plain(program)


def program_from(plain: object) -> StageProgram:
    """The program that `as_plain` was given. Raises InvalidInput where `plain` is none."""
    try:
        program = _read(plain)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise InvalidInput(f"is no program of a stage: {type(error).__name__}: {error}") from error
    if not isinstance(program, StageProgram):
        raise InvalidInput(f"is {type(program).__name__}, not a stage's program")
    return program


def _plain(value: Any) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return [_plain(element) for element in value]
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, _OF_TORCH):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        content = base64.b64encode(flat.numpy().tobytes()).decode()
        return {"tensor": [_plain(value.dtype), list(value.shape), content]}
    if is_dataclass(value) and type(value).__name__ in _CLASSES:
        return {type(value).__name__: [_plain(getattr(value, field.name)) for field in fields(value)]}
    raise InvalidInput(f"a program cannot hold {type(value).__name__}")


def _read(plain: Any) -> Any:
    if isinstance(plain, list):
        return tuple(_read(element) for element in plain)
    if not isinstance(plain, dict):
        return plain
    ((kind, content),) = plain.items()
    if kind == "complex":
        return complex(*content)
    if kind == "torch":
        found = getattr(torch, content)
        if not isinstance(found, _OF_TORCH):
            raise TypeError(f"torch.{content} is no dtype")
        return found
    if kind == "tensor":
        dtype, shape, text = cast(torch.dtype, _read(content[0])), content[1], content[2]
        data = bytearray(base64.b64decode(text, validate=True))
        flat = torch.frombuffer(data, dtype=torch.uint8).view(dtype) if data else torch.empty(0, dtype=dtype)
        return flat.reshape(shape)
    return _CLASSES[kind](*(_read(element) for element in content))
