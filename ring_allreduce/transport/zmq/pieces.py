"""Bodies of messages as ZeroMQ frames of a bounded size, and frames as bodies again.

ZeroMQ holds a frame as it arrives, also that of a stranger, before it is asked whether the stranger may stay; and it
bounds frames by one size for strangers and peers. So that this bound can be small, a body travels as several frames:

    pieces of PIECE_BYTES each ‖ a last one that is smaller, perhaps empty

A smaller body is one frame, as it is. What a peer may send in all is bounded by the envelope.

In: the frames of a message. Out: the frames that ZeroMQ carries, and the frames of the message again.
"""

from collections.abc import Sequence

PIECE_BYTES = 1 << 18
"""The size of a piece. One that is larger costs less per byte, and lets each stranger make a listener hold more."""

LARGEST_FRAME_BYTES = PIECE_BYTES + 1024
"""The largest frame that a listener takes: a piece, and what encryption adds to it."""


def split(frames: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """Return the frames that carry `frames`: views of the same bytes."""
    if all(memoryview(frame).nbytes < PIECE_BYTES for frame in frames):
        return list(frames)
    pieces: list[bytes | memoryview] = []
    for frame in frames:
        view = memoryview(frame).cast("B")
        pieces += [view[start : start + PIECE_BYTES] for start in range(0, view.nbytes + 1, PIECE_BYTES)]
    return pieces


def joined(pieces: Sequence[memoryview]) -> list[memoryview]:
    """Return the frames that were split; those that travelled in pieces are copied, and may be written to.

    A last frame whose end is missing is returned as far as it came: no sender of ours leaves it out.
    """
    if all(piece.nbytes != PIECE_BYTES for piece in pieces):
        return list(pieces)
    frames: list[memoryview] = []
    open_: list[memoryview] = []
    for piece in pieces:
        if open_ or piece.nbytes == PIECE_BYTES:
            open_.append(piece)
        else:
            frames.append(piece)
        if open_ and piece.nbytes != PIECE_BYTES:
            frames.append(_together(open_))
            open_ = []
    return [*frames, _together(open_)] if open_ else frames


def _together(pieces: Sequence[memoryview]) -> memoryview:
    return memoryview(bytearray().join(pieces))
