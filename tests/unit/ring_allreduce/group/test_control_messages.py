"""Control frames: any way of cutting the bytes gives the same messages; garbage is refused."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ring_allreduce.errors import InvalidMessage, MessageTooLarge
from ring_allreduce.group.control_messages import (
    CONTROL,
    FROM_MEMBERS,
    FROM_RENDEZVOUS,
    KEY_DIGITS,
    MAX_FRAME_BYTES,
    MAX_REASON_CHARACTERS,
    MOST_MEMBERS,
    AliveMessage,
    CommittedMessage,
    FinishedMessage,
    FrameReader,
    HandingOn,
    HeardMessage,
    HeldMessage,
    JoinMessage,
    LeavingMessage,
    MemberAddress,
    OverdueMessage,
    PutOutMessage,
    ReformedMessage,
    RefusedMessage,
    ResumedMessage,
    SuspectedMessage,
    WelcomeMessage,
    framed,
    shortened,
)
from ring_allreduce.group.liveness import Report

HERE = MemberAddress("127.0.0.1", 1, 2)
MESSAGES = [
    JoinMessage(name="a", size=2, address=HERE, comes_from="192.0.2.7", allowed={"a": "0123456789abcdef"}),
    HeldMessage(epoch=1, rounds=[3], form="float32"),
    FinishedMessage(epoch=1, round=3),
    SuspectedMessage(epoch=1, member="b", reason="NaN"),
    OverdueMessage(round=3, waited_s=60.0),
    AliveMessage(report=Report(1, 3, 2, 2, "b")),
    LeavingMessage(reason="enough"),
    WelcomeMessage(token=bytes(16), alive_every_s=1.0),
    HeardMessage(),
    RefusedMessage(reason="complete"),
    ReformedMessage(epoch=2, members={"b": HERE, "a": HERE}, committed=2, lost={"c": "killed"}),
    ResumedMessage(epoch=2, kept=[3], hand_on=[HandingOn(3, "a", ["b"])], first_round=1),
    CommittedMessage(epoch=2, round=3),
    PutOutMessage(epoch=2, reason="silent", refused=False),
]


def test_every_kind_is_sampled():
    assert {type(message) for message in MESSAGES} == {*FROM_MEMBERS, *FROM_RENDEZVOUS}


def test_members_keep_their_order():
    (read,) = FrameReader().feed(framed(MESSAGES[10]))
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


def test_the_largest_group_fits_into_a_frame():
    where = MemberAddress("h" * 253, 65535, 65535)
    members = {f"{index:0100}": where for index in range(MOST_MEMBERS)}
    lost = {f"{index:0100}": "x" * MAX_REASON_CHARACTERS for index in range(MOST_MEMBERS)}
    framed(ReformedMessage(epoch=1, members=members, committed=1, lost=lost))
    framed(
        JoinMessage(
            name="a", size=2, address=where, allowed={f"{index:0100}": "0" * KEY_DIGITS for index in range(5000)}
        )
    )


def test_a_frame_that_nobody_would_take_is_not_sent():
    with pytest.raises(MessageTooLarge):
        framed(LeavingMessage(reason="x" * MAX_FRAME_BYTES))


def test_the_beginning_of_an_encrypted_connection_is_named():
    with pytest.raises(InvalidMessage, match="the other side encrypts, and this one was given no keys"):
        FrameReader().feed(b"\xff\0\0\0\0\0\0\0\1\x7f")


def test_an_allow_list_is_shortened_to_what_tells_two_apart():
    assert shortened({"a": "0123456789abcdef" * 4}) == {"a": "0123456789abcdef"}
