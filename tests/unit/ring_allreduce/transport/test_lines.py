"""The real sockets of Lines are tested in tests/integration/test_collaboration.py; here is what a frame may be."""

import struct

import pytest

from ring_allreduce.errors import InvalidMessage
from ring_allreduce.transport.lines import MOST_PARTS, parts_of


def frame(*parts: bytes, count: int | None = None) -> memoryview:
    body = b"".join(struct.pack(">I", len(part)) + part for part in parts)
    return memoryview(bytearray(struct.pack(">H", len(parts) if count is None else count) + body))


def test_the_parts_of_a_frame_are_views_in_their_order() -> None:
    assert [bytes(part) for part in parts_of(frame(b"head", b"", b"body"))] == [b"head", b"", b"body"]


@pytest.mark.parametrize(
    "broken",
    [
        memoryview(b""),
        frame(b"a", count=2),
        frame(b"a", b"b", count=1),
        memoryview(bytearray(b"\x00\x01\x00\x00\x00\x09short")),
        frame(*[b""] * (MOST_PARTS + 1)),
        frame(count=0xFFFF),
    ],
)
def test_lengths_that_do_not_add_up_are_refused(broken: memoryview) -> None:
    with pytest.raises(InvalidMessage):
        parts_of(broken)
