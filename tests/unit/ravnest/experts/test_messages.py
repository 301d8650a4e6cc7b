import pytest

from ravnest.experts.messages import Backward, Copy, Forward, Refused, codec
from ring_allreduce.errors import InvalidMessage
from ring_allreduce.transport import Message


@pytest.mark.parametrize(
    "message",
    [
        Forward(call=1, expert=(3, 7), training=True),
        Backward(call=2, expert=(3,), updates=9),
        Refused(call=3, why="stale", said="old"),
        Copy(expert=(0, 0), term=1, updates=2, names=("a", "b"), take_over=True),
    ],
)
def test_messages_come_back_as_they_were(message: Message) -> None:
    assert codec().decode(codec().encode(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        Forward(call=-1, expert=(3,), training=True),
        Forward(call=1, expert=(3,) * 5, training=True),
        Forward(call=1, expert=(4096,), training=True),
        Copy(expert=(0,), term=1, updates=1, names=("x" * 2000,)),
        Refused(call=1, why="because"),  # type: ignore[arg-type]
    ],
)
def test_what_is_out_of_bounds_is_refused(message: Message) -> None:
    with pytest.raises(InvalidMessage):
        codec().decode(codec().encode(message))
