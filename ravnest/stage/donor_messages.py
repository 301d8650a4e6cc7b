"""The messages by which a stage that joins gets its segments from members of their rings.

In: donors, which the driver chooses, and room for pieces, which the newcomer gives. Out: typed headers; a piece travels
as a vector of bytes beside its header, in the bulk lane. stage/segment_taking.py and stage/segment_giving.py are the
two ends.
"""

from typing import Annotated, Final

from ravnest.stage.message_fields import MOST_RINGS
from ring_allreduce.transport import Count, Message, Name, Text, at_most

WINDOW: Final = 8
"""The pieces of one segment that may be on their way. The newcomer gives room for one more when one is here."""

GIVEN_PIECE_BYTES: Final = 256 << 10
"""The most bytes of a piece. A chunk of a ring waits for no more than this before it."""


# driver → stage that joins


class TakeSegments(Message, frozen=True, kw_only=True, tag="take_segments"):
    """The stage is to ask members of its rings for the state of their segments. Each of `sources` is (ring, donor)."""

    sources: Annotated[tuple[tuple[Count, Name], ...], at_most(MOST_RINGS)]


# stage that joins → donor


class SegmentAsked(Message, frozen=True, kw_only=True, tag="segment_asked"):
    """The donor is to send the state of a segment, as of `from_round` or of any later round, and `pieces` of it at
    first. The donor's pieces carry the `request`, so that those of an earlier one are known."""

    ring: Count
    request: Count
    from_round: Count
    pieces: Count


class SegmentRoom(Message, frozen=True, kw_only=True, tag="segment_room"):
    """There is room for so many `pieces` more of what was asked by this request."""

    ring: Count
    request: Count
    pieces: Count


# donor → stage that joins


class SegmentPiece(Message, frozen=True, kw_only=True, tag="segment_piece"):
    """It carries the next bytes of a segment's state as of `round`, which is a safetensors file. `offset` is where in
    it they belong, and `last` says that they are its last."""

    ring: Count
    request: Count
    round: Count
    offset: Count
    last: bool


# stage that joins → driver


class SegmentTaken(Message, frozen=True, kw_only=True, tag="segment_taken"):
    """The stage has all of a segment's state, which was so many bytes."""

    ring: Count
    donor: Name
    bytes: Count


class SourceFailed(Message, frozen=True, kw_only=True, tag="source_failed"):
    """The donor has sent nothing for too long, or what cannot be the segment: the stage needs another one."""

    ring: Count
    donor: Name
    reason: Text


DONOR_KINDS: Final = (TakeSegments, SegmentAsked, SegmentRoom, SegmentPiece, SegmentTaken, SourceFailed)
