"""Events and instructions as one line of text and back, so that a trace is readable and a test can be a
string.

The line is the dataclass's own repr: `OpenRound(round=1, epoch=0, final=False)`. Only literals are read;
nothing is evaluated.
"""

import ast
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, TypeVar

import msgspec

from ring_allreduce.errors import InvalidInput

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


def parse_line(line: str, kinds: Sequence[type[T]]) -> T:
    """What prints as `line`. Raises InvalidInput unless it is one of `kinds` with fields of their types."""
    by_name = {kind.__name__: kind for kind in kinds}
    try:
        call = ast.parse(line.strip(), mode="eval").body
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.args):
            raise InvalidInput(f"expected NAME(field=value, ...), got {line!r}")
        if call.func.id not in by_name:
            raise InvalidInput(f"{call.func.id} is none of {', '.join(by_name)}")
        values = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
        kind = by_name[call.func.id]
        unknown = values.keys() - {field.name for field in fields(kind)}
        if unknown:
            raise InvalidInput(f"{kind.__name__} has no field {', '.join(map(str, unknown))}")
        return msgspec.convert(values, kind)
    except (SyntaxError, ValueError, msgspec.ValidationError) as error:
        raise InvalidInput(f"cannot read {line!r}: {error}") from error
