"""Frames are the same after they travelled in pieces, and no piece is larger than a listener takes."""

import pytest

from ring_allreduce.transport.zmq.pieces import LARGEST_FRAME_BYTES, PIECE_BYTES, joined, split

SIZES = [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES, 3 * PIECE_BYTES + 5]


def views(pieces):
    return [memoryview(piece) for piece in pieces]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("after", [0, 7, PIECE_BYTES])
def test_round_trip(size, after):
    frames = [b"head", bytes(range(256)) * (size // 256) + bytes(size % 256), bytes(after)]
    pieces = split(frames)
    assert all(memoryview(piece).nbytes <= LARGEST_FRAME_BYTES - 64 for piece in pieces)
    assert [bytes(frame) for frame in joined(views(pieces))] == frames


def test_small_frames_travel_as_they_are():
    frames = [b"head", memoryview(bytearray(100))]
    assert split(frames) == frames
    pieces = views(frames)
    assert all(one is other for one, other in zip(joined(pieces), pieces, strict=True))


def test_what_travelled_in_pieces_may_be_written_to():
    (frame,) = joined(views(split([bytes(2 * PIECE_BYTES)])))
    assert not frame.readonly


def test_a_frame_whose_end_is_missing_stays_as_long_as_it_came():
    pieces = views(split([bytes(2 * PIECE_BYTES + 3)]))[:-1]
    assert [frame.nbytes for frame in joined(pieces)] == [2 * PIECE_BYTES]
