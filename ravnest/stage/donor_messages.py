"""The messages by which a stage that joins gets its segments from members of their rings, and by which one that leaves
hands on to a member what it has made and no committed round has.

In: who gives what to whom, which the driver chooses, and room for pieces of state, which the newcomer gives. Out: typed
headers; a piece travels as a vector beside its header, in the bulk lane: state as bytes, progress as float32 numbers.
stage/segment_taking.py and stage/segment_giving.py are the two ends of state, stage/progress_handing.py of progress.
"""

from typing import Annotated, Final

from ravnest.stage.message_fields import MOST_RINGS, Rounds
from ring_allreduce.transport import Count, Message, Name, Text, at_most

WINDOW: Final = 8
"""The pieces of one segment that may be on their way. The newcomer gives room for one more when one is here."""

GIVEN_PIECE_BYTES: Final = 256 << 10
"""The most bytes of a piece. A chunk of a ring waits for no more than this before it."""

PROGRESS_PIECE: Final = GIVEN_PIECE_BYTES // 4
"""The most numbers of a piece of progress."""


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


# driver → stage that takes


class TakeProgress(Message, frozen=True, kw_only=True, tag="take_progress"):
    """The stage is to ask these members of its rings for what they have made. Each of `sources` is (ring, giver)."""

    sources: Annotated[tuple[tuple[Count, Name], ...], at_most(MOST_RINGS)]


class AddProgress(Message, frozen=True, kw_only=True, tag="add_progress"):
    """The stage is to add what it has taken of `giver` to its own contribution to the first round from `from_round` on.

    What `giver` had given to the rounds `counted` is in the anchor already.
    """

    ring: Count
    giver: Name
    from_round: Count
    counted: Rounds


# stage that takes → stage that leaves


class ProgressAsked(Message, frozen=True, kw_only=True, tag="progress_asked"):
    """The stage is to send what it has made in a ring, as soon as it rests. Its pieces carry the `request`."""

    ring: Count
    request: Count


# stage that leaves → stage that takes


class ProgressPiece(Message, frozen=True, kw_only=True, tag="progress_piece"):
    """It carries the next numbers of what a stage contributed to `round`, or would give to it next.

    `samples` are behind all of that, and the stage has made so many `updates` by then. `offset` is where the numbers
    belong, and `last` says that nothing follows.
    """

    ring: Count
    request: Count
    updates: Count
    round: Count
    samples: Count
    offset: Count
    last: bool


# stage that takes → driver


class ProgressTaken(Message, frozen=True, kw_only=True, tag="progress_taken"):
    """The stage has all that `giver` has made in a ring, in so many updates."""

    ring: Count
    giver: Name
    updates: Count


DONOR_KINDS: Final = (
    TakeSegments,
    SegmentAsked,
    SegmentRoom,
    SegmentPiece,
    SegmentTaken,
    SourceFailed,
    TakeProgress,
    AddProgress,
    ProgressAsked,
    ProgressPiece,
    ProgressTaken,
)
