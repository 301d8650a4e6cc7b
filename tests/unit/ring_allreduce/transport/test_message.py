"""Codec: strict typed headers, and causes for what is none."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ring_allreduce.errors import InvalidInput, InvalidMessage
from ring_allreduce.transport.message import Codec, Message
from ring_allreduce.transport.stats import DropCause


class Ping(Message, frozen=True, kw_only=True, tag="ping"):
    number: int
    note: str = ""


class Pong(Message, frozen=True, kw_only=True, tag="pong"):
    pass


class Stranger(Message, frozen=True, kw_only=True, tag="stranger"):
    pass


CODEC = Codec([Ping, Pong])


@pytest.mark.parametrize("message", [Ping(number=3, note="é"), Ping(number=-1), Pong()])
def test_round_trip(message):
    assert CODEC.decode(CODEC.encode(message)) == message


def test_one_kind_alone_works():
    codec = Codec([Pong])
    assert codec.decode(codec.encode(Pong())) == Pong()


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ({"kind": "stranger"}, DropCause.UNKNOWN_KIND),
        ({"kind": "ping"}, DropCause.MALFORMED),
        ({"kind": "ping", "number": "3"}, DropCause.MALFORMED),
        ({"kind": "ping", "number": 3, "more": 0}, DropCause.MALFORMED),
        ({"kind": 7}, DropCause.MALFORMED),
        ({"number": 3}, DropCause.MALFORMED),
        ([1, 2], DropCause.MALFORMED),
        (None, DropCause.MALFORMED),
    ],
)
def test_causes(content, cause):
    with pytest.raises(InvalidMessage) as caught:
        CODEC.decode(msgspec.msgpack.encode(content))
    assert caught.value.cause == cause


@given(st.binary(max_size=60))
def test_any_bytes_decode_or_are_refused(data):
    try:
        content = CODEC.decode(data)
    except InvalidMessage as error:
        content = DropCause(error.cause)
    assert isinstance(content, Ping | Pong | DropCause)


def test_refuses_strangers_and_shared_tags():
    class Twin(Message, frozen=True, kw_only=True, tag="ping"):
        pass

    with pytest.raises(InvalidInput):
        CODEC.encode(Stranger())
    with pytest.raises(InvalidInput):
        Codec([Ping, Twin])
    with pytest.raises(InvalidInput):
        Codec([])


@pytest.mark.parametrize("name", ["\x1b]0;title\x07", "x" * 100_000])
def test_a_refusal_says_little_of_what_was_sent_and_nothing_that_a_terminal_obeys(name):
    with pytest.raises(InvalidMessage) as refused:
        CODEC.decode(msgspec.msgpack.encode({"kind": "ping", "number": 1, name: 1}))
    assert str(refused.value).isprintable()
    assert 30 < len(str(refused.value)) <= 300
