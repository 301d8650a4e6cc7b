"""The envelope: what is sealed opens equal; everything else is refused with its cause, whatever the bytes."""

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ring_allreduce.errors import InvalidInput, InvalidMessage, MessageTooLarge
from ring_allreduce.transport.envelope import Envelope
from ring_allreduce.transport.message import Codec, Message
from ring_allreduce.transport.stats import DropCause


class Note(Message, frozen=True, kw_only=True, tag="note"):
    text: str = ""


class Stranger(Message, frozen=True, kw_only=True, tag="stranger"):
    pass


TOKEN = bytes(range(16))
ENVELOPE = Envelope(Codec([Note]), TOKEN, 4096)
TENSORS = [torch.arange(6.0).reshape(2, 3), torch.tensor(7), torch.zeros(0, dtype=torch.bool)]


def frames(parts) -> list[memoryview]:
    return [memoryview(bytearray(part)) for part in parts]


def head(token=TOKEN, sender="a", epoch=0, specs=(), header=None) -> bytes:
    return token + msgspec.msgpack.encode([sender, epoch, specs, header or {"kind": "note", "text": ""}])


def refused(parts) -> str:
    with pytest.raises(InvalidMessage) as caught:
        ENVELOPE.open(frames(parts))
    return caught.value.cause


def test_what_is_sealed_opens_equal():
    parts, n_bytes = ENVELOPE.seal("a", 5, Note(text="hello"), TENSORS)
    assert n_bytes == sum(len(bytes(part)) for part in parts)
    opened = ENVELOPE.open(frames(parts))
    assert (opened.sender, opened.epoch, opened.message, opened.n_bytes) == (
        "a",
        5,
        Note(text="hello"),
        n_bytes,
    )
    for tensor, back in zip(TENSORS, opened.tensors, strict=True):
        assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(back, tensor)


@pytest.mark.parametrize(
    ("parts", "cause"),
    [
        ([], DropCause.WRONG_TOKEN),
        ([b""], DropCause.WRONG_TOKEN),
        ([TOKEN[:15]], DropCause.WRONG_TOKEN),
        ([head(token=bytes(16))], DropCause.WRONG_TOKEN),
        ([TOKEN], DropCause.MALFORMED),
        ([TOKEN + b"\xc1garbage"], DropCause.MALFORMED),
        ([head() + b"more"], DropCause.MALFORMED),
        ([TOKEN + b"\x91" * 2000], DropCause.MALFORMED),
        ([head(sender=7)], DropCause.MALFORMED),
        ([head(epoch="0")], DropCause.MALFORMED),
        ([head(specs=[["float32", [2]]])], DropCause.WRONG_SIZE),
        ([head(), b"1234"], DropCause.WRONG_SIZE),
        ([head(specs=[["float32", [2]]]), b"1234"], DropCause.WRONG_SIZE),
        ([head(specs=[["complex64", [1]]]), bytes(8)], DropCause.MALFORMED),
        ([head(specs=[["float32", [-1]]]), b""], DropCause.MALFORMED),
        ([head(specs=[["float32", [-1, -1]]]), b"1234"], DropCause.MALFORMED),
        ([head(specs=[["float32", [1] * 17]]), b"1234"], DropCause.MALFORMED),
        ([head(specs=[["float32", [0, 2**62]]]), b""], DropCause.MALFORMED),
        ([head(specs=[["float32", [2**40, 2**40]]]), b"1234"], DropCause.MALFORMED),
        ([head(specs=[["float32", [1.0]]]), b"1234"], DropCause.MALFORMED),
        ([head(header={"kind": "stranger"})], DropCause.UNKNOWN_KIND),
        ([head(header={"kind": "note", "text": 5})], DropCause.MALFORMED),
        ([head(), bytes(5000)], DropCause.TOO_LARGE),
    ],
)
def test_causes(parts, cause):
    assert refused(parts) == cause


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=80), max_size=4), st.booleans(), st.integers(0, 60), st.integers(0, 255))
def test_any_bytes_open_or_are_refused(bodies, spoil, position, byte):
    if spoil:
        sealed, _ = ENVELOPE.seal("a", 0, Note(text="abc"), TENSORS)
        first = bytearray(sealed[0])
        first[16 + position % (len(first) - 16)] = byte
        bodies = [first, *sealed[1:], *bodies[:1]]
    try:
        content = ENVELOPE.open(frames(bodies)).message
    except InvalidMessage as error:
        content = DropCause(error.cause)
    assert isinstance(content, Note | DropCause)


def test_refuses_to_seal_what_cannot_travel():
    with pytest.raises(MessageTooLarge):
        ENVELOPE.seal("a", 0, Note(), [torch.zeros(1024)])
    with pytest.raises(InvalidInput):
        ENVELOPE.seal("a", 0, Stranger(), [])
    with pytest.raises(InvalidInput):
        Envelope(Codec([Note]), b"short", 4096)
