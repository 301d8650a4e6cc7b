"""The kinds of message by which rings average: a chunk of a ring, and a chunk of an average that is handed on.

An endpoint on which a RingReducer works has them in its codec. Their tensors travel beside them, see the transport.
"""

from ring_allreduce.ring.events import Phase
from ring_allreduce.transport.message import Message


class Chunk(Message, frozen=True, kw_only=True, tag="ring_chunk"):
    """One chunk of one ring in one round. Its tensors carry the span [start, stop) of the flat vector, in the form that
    wire_forms.py gives it.

    `weight` is the weight behind the numbers: the partial one in phase `reduce`, the total in phase `gather`, and the
    sender's own in phase `direct`.
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
"""The kinds that a codec has to know for a RingReducer to work on its endpoint."""
