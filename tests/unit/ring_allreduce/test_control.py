"""Control frames: any way of cutting the bytes gives the same messages; garbage is refused."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ring_allreduce.control import (
    CONTROL,
    FROM_MEMBERS,
    FROM_RENDEZVOUS,
    MAX_FRAME_BYTES,
    Alive,
    Committed,
    Finished,
    FrameReader,
    HandingOn,
    Held,
    Join,
    Leaving,
    MemberAddress,
    Overdue,
    PutOut,
    Reformed,
    Refused,
    Resumed,
    Suspected,
    Welcome,
    framed,
)
from ring_allreduce.errors import InvalidMessage
from ring_allreduce.watch import Report

HERE = MemberAddress("127.0.0.1", 1, 2)
MESSAGES = [
    Join(name="a", size=2, address=HERE),
    Held(epoch=1, rounds=[3], form="float32"),
    Finished(epoch=1, round=3),
    Suspected(epoch=1, member="b", reason="NaN"),
    Overdue(round=3, waited_s=60.0),
    Alive(report=Report(1, 3, 2, 2, "b")),
    Leaving(reason="enough"),
    Welcome(token=b"t", alive_every_s=1.0),
    Refused(reason="complete"),
    Reformed(epoch=2, members={"b": HERE, "a": HERE}, committed=2, lost={"c": "killed"}),
    Resumed(epoch=2, kept=[3], hand_on=[HandingOn(3, "a", ["b"])], first_round=1),
    Committed(epoch=2, round=3),
    PutOut(epoch=2, reason="silent", refused=False),
]


def test_every_kind_is_sampled():
    assert {type(message) for message in MESSAGES} == {*FROM_MEMBERS, *FROM_RENDEZVOUS}


def test_members_keep_their_order():
    (read,) = FrameReader().feed(framed(MESSAGES[9]))
    assert list(read.members) == ["b", "a"]


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
