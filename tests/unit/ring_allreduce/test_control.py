"""Control frames: any way of cutting the bytes gives the same messages; garbage is refused."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ring_allreduce.control import (
    CONTROL,
    MAX_FRAME_BYTES,
    Called,
    Committed,
    Failed,
    FrameReader,
    Join,
    MemberAddress,
    Roster,
)
from ring_allreduce.errors import InvalidMessage

HERE = MemberAddress("127.0.0.1", 1, 2)
MESSAGES = [
    Join(name="a", size=2, address=HERE),
    Roster(epoch=0, members={"a": HERE}),
    Called(calls=1),
    Committed(round=1),
    Failed(member="a", reason="it left"),
]


def frame(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


@given(st.lists(st.integers(1, 40), max_size=30))
def test_any_cut_gives_the_same_messages(sizes):
    data = b"".join(frame(CONTROL.encode(message)) for message in MESSAGES)
    reader, read = FrameReader(), []
    for size in [*sizes, len(data)]:
        read += reader.feed(data[:size])
        data = data[size:]
    assert read == MESSAGES


@pytest.mark.parametrize("garbage", [frame(b"\xc1"), frame(b""), struct.pack(">I", MAX_FRAME_BYTES + 1)])
def test_garbage_is_refused(garbage):
    with pytest.raises(InvalidMessage):
        FrameReader().feed(garbage)
