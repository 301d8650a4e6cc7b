"""The typed headers of messages, and their encoding.

In: a message of a registered kind, or bytes. Out: bytes, or the message. The encoding is msgpack, as one tagged union
of the registered kinds, and validation is strict. Tensors, sender and epoch are added by the envelope.
"""

from collections.abc import Sequence
from typing import Any, Union

import msgspec

from ring_allreduce.errors import InvalidInput, InvalidMessage
from ring_allreduce.transport.stats import DropCause


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """The base of all typed headers, as in `class Chunk(Message, frozen=True, kw_only=True, tag="chunk")`."""


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
