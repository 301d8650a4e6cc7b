"""Messages as a peer that lies may send them: valid ones in which one field has an extreme value."""

import copy
import math

import msgspec
from hypothesis import strategies as st

EXTREMES = (
    math.nan,
    math.inf,
    -math.inf,
    1.7e308,
    -1.7e308,
    3e38,
    5e-324,
    -1.0,
    -1,
    0,
    10_000,
    2**53,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
    "",
    "x" * 100_000,
    "\ud7ff/../..",
    b"",
    None,
    (),
    (0,) * 70_000,
    (-1,),
    (2**53,),
    (2**64 - 1,),
    (math.nan,),
    (1.7e308, -1.7e308),
    ("x" * 5000,),
    {},
    {"x": math.nan},
    {"x": 2**64 - 1},
    {f"k{number}": 1 for number in range(5000)},
    True,
)
"""What any field may say. MessagePack can carry all of it."""


def mutations(examples):
    """A strategy: one of the messages `examples`, in which one field was replaced by one of EXTREMES."""
    places = [(example, field) for example in examples for field in example.__struct_fields__]
    return st.builds(_mutated, st.sampled_from(places), st.sampled_from(EXTREMES))


def _mutated(place, value):
    example, field = place
    lie = copy.copy(example)
    msgspec.structs.force_setattr(lie, field, value)  # a liar does not check what it says
    return lie


def unbounded(kind, may_be_any_float=()):
    """The fields of a message kind, with what lies inside of them, that decoding does not bound."""
    found = []
    for field in msgspec.inspect.type_info(kind).fields:
        found += _unbounded(field.type, f"{kind.__name__}.{field.name}", may_be_any_float)
    return found


def _unbounded(kind, path, free):
    inspect = msgspec.inspect
    match kind:
        case inspect.IntType():
            return [] if None not in (kind.ge, kind.le) else [path]
        case inspect.FloatType():
            return [] if None not in (kind.ge, kind.le) or path in free else [path]
        case inspect.StrType() | inspect.BytesType():
            return [] if kind.max_length is not None else [path]
        case inspect.BoolType() | inspect.LiteralType() | inspect.NoneType():
            return []
        case inspect.UnionType():
            return [each for one in kind.types for each in _unbounded(one, path, free)]
        case inspect.TupleType():
            return [each for one in kind.item_types for each in _unbounded(one, path, free)]
        case inspect.ListType() | inspect.VarTupleType():
            bound = [] if kind.max_length is not None else [path]
            return bound + _unbounded(kind.item_type, path, free)
        case inspect.DictType():
            bound = [] if kind.max_length is not None else [path]
            return bound + _unbounded(kind.key_type, path, free) + _unbounded(kind.value_type, path, free)
        case inspect.StructType():
            return unbounded(kind.cls, free)
    return [path]
