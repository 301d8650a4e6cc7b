"""What happens to a ring and what it asks for: the events and instructions of the ring machine.

Spans are half-open element ranges of the flat vector. `buffer` is the member's accumulating vector, `own` its
contribution, `weight` its weight. Every class prints as one line that `lines.parse_line` reads.
"""

from dataclasses import dataclass
from typing import Literal

Phase = Literal["reduce", "gather"]


@dataclass(frozen=True)
class ContributionReady:
    """My contribution is there, with the weight (samples) and the counters that travel with it."""

    weight: float
    counters: tuple[int, ...] = ()


@dataclass(frozen=True)
class ChunkArrived:
    """A chunk from `sender`. In phase `reduce` it is a partial sum and `weight` the partial weight behind it;
    in phase `gather` it is final and `weight` the total."""

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


@dataclass(frozen=True)
class StoreOwn:
    """buffer ← own, bit by bit: the whole average of a ring with one member."""


@dataclass(frozen=True)
class ScaleOwn:
    """buffer[span] ← weight · own[span]."""

    start: int
    stop: int


@dataclass(frozen=True)
class AddOwn:
    """buffer[span] += weight · own[span], where an early chunk was stored."""

    start: int
    stop: int


@dataclass(frozen=True)
class AddChunk:
    """buffer[span] ← the chunk that arrived + weight · own[span]."""

    start: int
    stop: int


@dataclass(frozen=True)
class StoreChunk:
    """buffer[span] ← the chunk that arrived."""

    start: int
    stop: int


@dataclass(frozen=True)
class DivideChunk:
    """buffer[span] ← buffer[span] / total_weight; zeros when the total is zero."""

    start: int
    stop: int
    total_weight: float


@dataclass(frozen=True)
class SendChunk:
    """Send buffer[span] to `to`."""

    to: str
    phase: Phase
    block: int
    start: int
    stop: int
    weight: float
    counters: tuple[int, ...]


@dataclass(frozen=True)
class FinishRing:
    """The buffer holds the average; `counters` are the largest of all members."""

    total_weight: float
    counters: tuple[int, ...]


@dataclass(frozen=True)
class DropChunk:
    """The chunk that arrived has no effect, and no harm is done: a duplicate, another epoch or round."""

    sender: str
    reason: str


@dataclass(frozen=True)
class RefuseChunk:
    """The chunk that arrived has no effect; `sender` disagrees with this member, so no ring can finish."""

    sender: str
    reason: str


RingInstruction = (
    StoreOwn
    | ScaleOwn
    | AddOwn
    | AddChunk
    | StoreChunk
    | DivideChunk
    | SendChunk
    | FinishRing
    | DropChunk
    | RefuseChunk
)
