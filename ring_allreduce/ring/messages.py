"""The kinds of message by which rings average: chunks of a ring, of an average that is handed on, or that is followed.

An endpoint on which a RingReducer works has them in its codec. Their tensors travel beside them, see the transport.
"""

from typing import Annotated

import msgspec

from ring_allreduce.ring.events import MOST_WEIGHT, Phase
from ring_allreduce.transport.message import Count, Message, Name

MOST_COUNTERS = 1 << 22
"""The most counters that travel with a ring: all whole numbers in the buffers of a segment."""

MOST_SPANS = 1024
"""The most spans of an average that a follower asks for at once."""

Weight = Annotated[float, msgspec.Meta(ge=0.0, le=1e6 * MOST_WEIGHT)]
"""The weight of a million members at most. The machines, which know how many there are, bound it closer."""

Counters = Annotated[
    tuple[Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)], ...], msgspec.Meta(max_length=MOST_COUNTERS)
]


class Chunk(Message, frozen=True, kw_only=True, tag="ring_chunk"):
    """One chunk of one ring in one round. Its tensors carry the span [start, stop) of the flat vector, in the form that
    wire_forms.py gives it.

    `weight` is the weight behind the numbers: the partial one in phase `reduce`, the total in phase `gather`, and the
    sender's own in phase `direct`.
    """

    ring: Name
    round: Count
    phase: Phase
    block: Count
    start: Count
    stop: Count
    weight: Weight
    counters: Counters = ()


class HandedOn(Message, frozen=True, kw_only=True, tag="ring_handed_on"):
    """One chunk of a whole average, from a member that holds it; its one tensor is the span [start, stop)."""

    ring: Name
    round: Count
    start: Count
    stop: Count
    total_weight: Weight
    counters: Counters = ()


class FollowedPiece(Message, frozen=True, kw_only=True, tag="ring_followed_piece"):
    """One chunk of an average, from the member that completes it to one who follows the ring; its one tensor is the
    span [start, stop)."""

    ring: Name
    round: Count
    start: Count
    stop: Count


class FollowedWhole(Message, frozen=True, kw_only=True, tag="ring_followed_whole"):
    """The round is whole at the sender: what a follower needs beside the numbers."""

    ring: Name
    round: Count
    total_weight: Weight
    counters: Counters = ()


class FollowedTaken(Message, frozen=True, kw_only=True, tag="ring_followed_taken"):
    """A follower has taken all averages up to `round`, so that it may be sent later ones."""

    round: Count


class FollowedMissing(Message, frozen=True, kw_only=True, tag="ring_followed_missing"):
    """A follower lacks these spans, [start, stop) each, of the average of a committed round: who completed them is
    gone. A member that still holds the average sends them, and `FollowedWhole` after them."""

    ring: Name
    round: Count
    spans: Annotated[tuple[tuple[Count, Count], ...], msgspec.Meta(max_length=MOST_SPANS)]


RING_KINDS: tuple[type[Message], ...] = (Chunk, HandedOn)
"""The kinds that a codec has to know for a RingReducer to work on its endpoint."""

FOLLOWED_KINDS: tuple[type[Message], ...] = (FollowedPiece, FollowedWhole, FollowedTaken, FollowedMissing)
"""The kinds by which somebody follows a ring who is no member of it (following.py)."""
