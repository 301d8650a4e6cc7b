"""One message as frames: a head (run token, sender, epoch, tensor specs, typed header), then raw tensor
bodies.

    frame 0   token (16 bytes) ‖ msgpack [sender, epoch, [[dtype, shape], ...], header]
    frame i   the bytes of tensor i, row-major, little-endian

Decides what a valid message is and refuses everything else with a cause. The token is compared before
anything is parsed. Who may send is not decided here: a sender name is a claim that the endpoint checks.
"""

import hmac
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from torch import Tensor

from ring_allreduce.errors import InvalidInput, InvalidMessage, MessageTooLarge
from ring_allreduce.transport.frames import DTYPE_NAMES, DTYPES, byte_count, tensor_bytes, tensor_from
from ring_allreduce.transport.message import Codec, Message
from ring_allreduce.transport.stats import DropCause

TOKEN_BYTES = 16
MAX_TENSORS = 8192
MAX_DIMENSIONS = 16
MAX_ELEMENTS = 1 << 48  # also of an empty tensor's other sizes: torch multiplies them into strides

if sys.byteorder != "little":
    raise ImportError("ring_allreduce sends tensors as little-endian bytes; this machine is big-endian")


class _Head(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    sender: str
    epoch: int
    tensors: list[tuple[str, list[int]]]
    header: msgspec.Raw


@dataclass(frozen=True)
class Opened:
    """The content of a valid message. `n_bytes` counts head and bodies."""

    sender: str
    epoch: int
    message: Message
    tensors: tuple[Tensor, ...]
    n_bytes: int


class Envelope:
    """Seals and opens the messages of one run."""

    def __init__(self, codec: Codec, token: bytes, max_message_bytes: int) -> None:
        """Raises InvalidInput unless `token` has 16 bytes."""
        if len(token) != TOKEN_BYTES:
            raise InvalidInput(f"a run token has {TOKEN_BYTES} bytes, got {len(token)}")
        self._codec = codec
        self._token = token
        self._max_message_bytes = max_message_bytes
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(_Head)

    def seal(
        self, sender: str, epoch: int, message: Message, tensors: Sequence[Tensor]
    ) -> tuple[list[bytes | memoryview], int]:
        """The frames of a message and their bytes in all; bodies are views of the tensors' memory.

        Raises InvalidInput for a kind or tensor that cannot travel, MessageTooLarge.
        """
        if len(tensors) > MAX_TENSORS:
            raise InvalidInput(f"one message carries at most {MAX_TENSORS} tensors, got {len(tensors)}")
        bodies = [tensor_bytes(tensor) for tensor in tensors]
        specs = [(DTYPE_NAMES[tensor.dtype], list(tensor.shape)) for tensor in tensors]
        header = msgspec.Raw(self._codec.encode(message))
        head = self._token + self._encoder.encode(_Head(sender, epoch, specs, header))
        n_bytes = len(head) + sum(body.nbytes for body in bodies)
        if n_bytes > self._max_message_bytes:
            raise MessageTooLarge(n_bytes, self._max_message_bytes)
        return [head, *bodies], n_bytes

    def open(self, frames: Sequence[memoryview]) -> Opened:
        """The message in `frames`; large bodies stay where they lie. Raises InvalidMessage with its cause."""
        n_bytes = sum(frame.nbytes for frame in frames)
        if n_bytes > self._max_message_bytes:
            raise InvalidMessage(DropCause.TOO_LARGE, f"a message of {n_bytes} bytes")
        head = self._head(frames)
        bodies = frames[1:]
        if len(bodies) != len(head.tensors):
            raise InvalidMessage(DropCause.WRONG_SIZE, f"{len(bodies)} bodies for {len(head.tensors)} tensors")
        tensors = tuple(_tensor(body, *spec) for body, spec in zip(bodies, head.tensors, strict=True))
        message = self._codec.decode(head.header)
        return Opened(head.sender, head.epoch, message, tensors, n_bytes)

    def _head(self, frames: Sequence[memoryview]) -> _Head:
        head = bytes(frames[0]) if frames else b""
        if not hmac.compare_digest(head[:TOKEN_BYTES], self._token):
            raise InvalidMessage(DropCause.WRONG_TOKEN, "the message is not of this run")
        try:
            return self._decoder.decode(memoryview(head)[TOKEN_BYTES:])
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise InvalidMessage(DropCause.MALFORMED, f"not a valid head: {error}") from error


def _tensor(body: memoryview, dtype_name: str, shape: list[int]) -> Tensor:
    dtype = DTYPES.get(dtype_name)
    if dtype is None:
        raise InvalidMessage(DropCause.MALFORMED, f"no dtype {dtype_name!r} travels")
    if len(shape) > MAX_DIMENSIONS or min(shape, default=0) < 0 or math.prod(filter(None, shape)) > MAX_ELEMENTS:
        raise InvalidMessage(DropCause.MALFORMED, "a shape that no tensor has")
    if byte_count(dtype, shape) != body.nbytes:
        raise InvalidMessage(DropCause.WRONG_SIZE, f"{body.nbytes} bytes for {dtype_name} of shape {shape}")
    return tensor_from(body, dtype, shape)
