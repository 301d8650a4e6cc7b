"""The kinds of message that ring_allreduce itself sends; an endpoint that averages has them in its codec."""

from ring_allreduce.ring.events import Phase
from ring_allreduce.transport.message import Message


class Chunk(Message, frozen=True, kw_only=True, tag="ring_chunk"):
    """One chunk of one ring in one round; its tensors carry the span [start, stop) of the flat vector,
    in the form that wire_forms.py gives it.

    `weight`: the weight behind the numbers: partial in phase `reduce`, the total in phase `gather`, the sender's own in
    phase `direct`.
    """

    ring: str
    round: int
    phase: Phase
    block: int
    start: int
    stop: int
    weight: float
    counters: tuple[int, ...] = ()


class HandedOn(Message, frozen=True, kw_only=True, tag="ring_handed_on"):
    """One chunk of a whole average, from a member that holds it; its one tensor is the span [start, stop)."""

    ring: str
    round: int
    start: int
    stop: int
    total_weight: float
    counters: tuple[int, ...] = ()


RING_KINDS: tuple[type[Message], ...] = (Chunk, HandedOn)
"""What a codec has to know for a RingReducer to work on its endpoint."""
