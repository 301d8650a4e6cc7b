"""Documents: valid ones of mappings and lists, of which the bytes of an input choose what is changed.

Few mutated bytes are still YAML, JSON or MessagePack, and those that are not end in the parser, before a line of
ravnest. So the bytes choose keys and values of a valid document, and what stands there instead. In: a document and
bytes. Out: another document.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import msgspec

MOST_EDITS = 8

ODD: Sequence[Any] = (
    None, True, False, -1, 0, 1, 10**9, 2**53, 2**63, 10**30, 1e308, -1e308, 5e-324, float("nan"), float("inf"), "",
    "x", "x" * 300, "../../evil", "\u202e", "1", "yes", [], [[]], [None], [1, 2], ["a", "a"], {}, {"": None},
    {"x": {"y": []}}, {1: 2}, b"\x00",
)  # fmt: skip
"""What may stand at any place of a document."""

PACKED: Sequence[Any] = tuple(2**64 - 1 if value == 10**30 else value for value in ODD)
"""The same, as far as MessagePack has it."""


def places(document: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of everything in a document of mappings and lists."""
    entries = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [at, *(path for key, value in entries for path in places(value, (*at, key)))]


def edited(document: Any, data: bytes, odd: Sequence[Any] = ODD) -> Any:
    """A copy of `document`, changed as the bytes say: of each four, two choose a place, one what happens there, and
    one what with. A document that is changed at its root is that value alone."""
    copy = deepcopy(document)
    for start in range(0, min(len(data), 4 * MOST_EDITS) - 3, 4):
        choice, kind, value = int.from_bytes(data[start : start + 2]), data[start + 2], data[start + 3]
        paths = places(copy)
        path = paths[choice % len(paths)]
        if not path:
            if kind % 16 == 0:  # rarely, since nothing of the document is left
                return deepcopy(odd[value % len(odd)])
            continue
        holder = copy
        for key in path[:-1]:
            holder = holder[key]
        if kind % 4 == 0:
            del holder[path[-1]]
        elif kind % 4 == 1 and isinstance(holder, dict):
            holder[f"key{value}"] = holder[path[-1]]
        else:
            holder[path[-1]] = deepcopy(odd[value % len(odd)])  # or the next edit would change it for all
    return copy


EDITS: Sequence[bytes] = [
    bytes([0, place, kind, value]) for place in range(0, 250, 25) for kind in (2, 4) for value in (1, 13, 27)
]
"""Changes to begin with."""


def example_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """A message of a kind, as plain data, with the least that each field may say."""
    found: dict[str, Any] = {str(kind.__struct_config__.tag_field): kind.__struct_config__.tag}
    return found | _fields(msgspec.inspect.type_info(kind))


def _fields(info: Any) -> dict[str, Any]:
    return {field.encode_name: _example(field.type) for field in info.fields}


def _example(kind: Any) -> Any:
    inspect = msgspec.inspect
    match kind:
        case inspect.IntType():
            return max(1, kind.ge or 0)
        case inspect.FloatType():
            return 1.0
        case inspect.StrType():
            return "a" * max(1, kind.min_length or 0)
        case inspect.BytesType():
            return bytes(kind.min_length or 1)
        case inspect.BoolType():
            return True
        case inspect.LiteralType():
            return kind.values[0]
        case inspect.UnionType():
            return _example(next(one for one in kind.types if not isinstance(one, inspect.NoneType)))
        case inspect.TupleType():
            return [_example(one) for one in kind.item_types]
        case inspect.VarTupleType() | inspect.ListType() | inspect.FrozenSetType():
            return [_example(kind.item_type)] * max(1, kind.min_length or 0)
        case inspect.DictType():
            return {_example(kind.key_type): _example(kind.value_type)}
        case inspect.StructType() if kind.cls.__struct_config__.array_like:
            return list(_fields(kind).values())
        case inspect.StructType():
            return _fields(kind)
        case _:
            return None
