"""The chunk header: round trip, and strict validation of every field."""

import msgspec
import pytest

from ring_allreduce.errors import InvalidMessage
from ring_allreduce.ring.messages import RING_KINDS, Chunk
from ring_allreduce.transport.message import Codec

CHUNK = Chunk(ring="r", round=3, phase="reduce", block=1, start=10, stop=20, weight=8.0, counters=(4, 5))


def test_round_trip():
    codec = Codec(RING_KINDS)
    assert codec.decode(codec.encode(CHUNK)) == CHUNK


@pytest.mark.parametrize(
    "change",
    [{"phase": "other"}, {"round": "3"}, {"counters": [1.5]}, {"weight": None}, {"more": 1}, {"ring": 7}],
)
def test_refuses_wrong_fields(change):
    fields = {**msgspec.to_builtins(CHUNK), **change}
    with pytest.raises(InvalidMessage):
        Codec(RING_KINDS).decode(msgspec.msgpack.encode(fields))
