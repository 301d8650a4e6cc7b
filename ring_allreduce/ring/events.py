"""What happens to a ring and what it asks for: the events and instructions of the ring, group and direct machines.

Spans are half-open element ranges of the flat vector. `own` is the member's contribution, `weight` its weight,
`average` the vector that it fills. `payload` is the chunk at hand, which the instructions of one list work on one after
another: what arrived, or what is made of `own`. Every event prints as one line that `parse_line` reads back, so that a
trace is readable and a test can be a string.
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, TypeVar, dataclass_transform

import msgspec

from ring_allreduce.errors import InvalidInput

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

R = TypeVar("R")
T = TypeVar("T", bound="DataclassInstance")

Phase = Literal["reduce", "gather", "direct"]

LEAST_WEIGHT, MOST_WEIGHT = 1e-12, 1e12
"""The bounds of one member's weight, if it is not 0. So no sum and no quotient of a round leaves float32's range."""


def weight_fits(weight: float, members: int = 1) -> bool:
    """Say whether `weight` can be that of `members` members together."""
    return weight == 0.0 or LEAST_WEIGHT <= weight <= members * MOST_WEIGHT * (1 + 1e-9)  # NaN fails


def require_weight(weight: float) -> None:
    """Raise InvalidInput for what cannot be the weight of one member."""
    if not weight_fits(weight):
        raise InvalidInput(f"a weight must be 0, or from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}, got {weight}")


@dataclass_transform(frozen_default=True)
def record(cls: type[R]) -> type[R]:
    """Make a class of events: plain data with slots, equal by value and hashable, with the fields of a dataclass.

    Never assign to a field of one. Type checkers refuse it, and that it is not refused again at run time is on
    purpose: a simulation makes millions of events a minute, and a frozen dataclass takes three times as long to make.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)


@record
class ContributionReady:
    """My contribution is there, with the weight (samples) and the counters that travel with it."""

    weight: float
    counters: tuple[int, ...] = ()


@record
class ChunkArrived:
    """A chunk from `sender`. In phase `reduce` it is a partial sum and `weight` the partial weight behind it;
    in phase `gather` it is final and `weight` the total; in phase `direct` it is the sender's weighted part."""

    sender: str
    epoch: int
    round: int
    phase: Phase
    block: int
    start: int
    stop: int
    weight: float
    counters: tuple[int, ...] = ()


RingEvent = ContributionReady | ChunkArrived


@record
class StoreOwn:
    """average ← own, bit by bit: the whole average of a ring with one member."""


@record
class ScaleOwn:
    """payload ← weight · own[span]."""

    start: int
    stop: int


@record
class HoldChunk:
    """Keep the payload, which is the part of `sender`, until TakeHeld or SumChunks asks for it."""

    sender: str
    block: int
    start: int
    stop: int


@record
class TakeHeld:
    """payload ← the chunk of `sender` that was held, which is held no more."""

    sender: str
    block: int
    start: int
    stop: int


@record
class AddHeld:
    """payload += the chunk of `sender` that was held, which is held no more."""

    sender: str
    block: int
    start: int
    stop: int


@record
class AddOwn:
    """payload += weight · own[span]."""

    start: int
    stop: int


@record
class DivideChunk:
    """payload ← payload / total_weight; zeros when the total is zero. From here on it is final."""

    start: int
    stop: int
    total_weight: float


@record
class StoreChunk:
    """average[span] ← payload."""

    start: int
    stop: int


@record
class SumChunks:
    """average[span] ← (Σ of all members' weighted parts, in the members' order) / total_weight; zeros when it is zero.

    The parts are those that were held, and are held no more. `weights` has each member's, in their order, where a rule
    other than the mean needs them.
    """

    start: int
    stop: int
    total_weight: float
    weights: tuple[float, ...] = ()


@record
class SendChunk:
    """Send the payload, which is the span [start, stop), to `to`."""

    to: str
    phase: Phase
    block: int
    start: int
    stop: int
    weight: float
    counters: tuple[int, ...]


@record
class FinishRing:
    """The average is whole; `counters` are the largest of all members."""

    total_weight: float
    counters: tuple[int, ...]


@record
class DropChunk:
    """The chunk that arrived has no effect, and no harm is done: a duplicate, another epoch or round."""

    sender: str
    reason: str


@record
class RefuseChunk:
    """The chunk that arrived has no effect; `sender` disagrees with this member, so no ring can finish."""

    sender: str
    reason: str


RingInstruction = (
    StoreOwn
    | ScaleOwn
    | HoldChunk
    | TakeHeld
    | AddHeld
    | AddOwn
    | DivideChunk
    | StoreChunk
    | SumChunks
    | SendChunk
    | FinishRing
    | DropChunk
    | RefuseChunk
)


def parse_line(line: str, kinds: Sequence[type[T]]) -> T:
    """Return the event that prints as `line`, such as `OpenRound(round=1, epoch=0, final=False)`; only literals are
    read.

    Raises InvalidInput unless it is one of `kinds` with fields of their types.
    """
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
