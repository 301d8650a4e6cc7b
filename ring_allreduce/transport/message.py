"""The typed headers of messages, and their encoding.

In: a message of a registered kind, or bytes. Out: bytes, or the message. The encoding is msgpack, as one tagged union
of the registered kinds, and validation is strict. Tensors, sender and epoch are added by the envelope.

Every field is bounded where it is decoded: numbers by what they can be in any run, and names, texts and collections in
length. `Count`, `Seconds` and the others are the types of fields for this. So nobody behind has to expect a number that
overflows, or a list that fills the memory.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Union

import msgspec

from ring_allreduce.errors import InvalidInput, InvalidMessage
from ring_allreduce.transport.stats import DropCause

MOST_COUNT = (1 << 53) - 1
"""The largest number of anything that is counted: it is exact as a float, too."""

MOST_SECONDS = 1e10
"""Some three centuries: more than any duration, and more than any clock since 1970 says."""

NAME_CHARACTERS = 1024
"""The longest name: of a member, a ring, or a tensor of a model."""

TEXT_CHARACTERS = 4096
"""The longest text that tells a person something."""


def between(least: float, most: float) -> msgspec.Meta:
    """Return what an annotated number is bounded by, both included; NaN is not between any two."""
    return msgspec.Meta(ge=least, le=most)


def at_most(count: int) -> msgspec.Meta:
    """Return what the length of an annotated text or collection is bounded by."""
    return msgspec.Meta(max_length=count)


Count = Annotated[int, between(0, MOST_COUNT)]
"""A whole number of things, or a thing's number."""

Seconds = Annotated[float, between(0.0, MOST_SECONDS)]
"""A duration."""

ClockSeconds = Annotated[float, between(-MOST_SECONDS, MOST_SECONDS)]
"""What a clock says, from whenever it counts."""

Name = Annotated[str, at_most(NAME_CHARACTERS)]
Text = Annotated[str, at_most(TEXT_CHARACTERS)]


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """The base of all typed headers, as in `class Chunk(Message, frozen=True, kw_only=True, tag="chunk")`."""


class Unacceptable(Message, frozen=True, kw_only=True, tag="unacceptable"):
    """It stands for what came in the name of a known peer and is no message that a peer of ours sends.

    It never travels: an endpoint delivers it, so that whoever acts on messages can hold it against the peer.
    """

    reason: str


class _KindOnly(msgspec.Struct):
    kind: str


class Codec:
    """Encodes and decodes messages of the registered kinds; all others are refused."""

    def __init__(self, kinds: Sequence[type[Message]]) -> None:
        """Register `kinds`. Raises InvalidInput when there is none, or two of them share a tag."""
        tags = [kind.__struct_config__.tag for kind in kinds]
        if not kinds or len(set(tags)) != len(tags):
            raise InvalidInput(f"message kinds need distinct tags, and at least one kind; got {tags}")
        self._tags = frozenset(tags)
        self._kinds = tuple(kinds)
        self._encoder = msgspec.msgpack.Encoder()
        union: Any = Union[self._kinds]  # noqa: UP007 - known at run time only
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(union)
        self._kind_decoder = msgspec.msgpack.Decoder(_KindOnly)

    def encode(self, message: Message) -> bytes:
        """Return the bytes of `message`. Raises InvalidInput when its kind is not registered."""
        if type(message) not in self._kinds:
            raise InvalidInput(f"{type(message).__name__} is not a registered kind of message")
        return self._encoder.encode(message)

    def decode(self, data: bytes | memoryview | msgspec.Raw) -> Message:
        """Return the message in `data`. Raises InvalidMessage with cause UNKNOWN_KIND or MALFORMED."""
        try:
            return self._decoder.decode(data)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise InvalidMessage(self._cause(data), f"not a valid message: {error}") from error

    def _cause(self, data: bytes | memoryview | msgspec.Raw) -> DropCause:
        try:
            kind = self._kind_decoder.decode(data).kind
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return DropCause.MALFORMED
        return DropCause.MALFORMED if kind in self._tags else DropCause.UNKNOWN_KIND
