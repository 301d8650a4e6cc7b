"""One message as frames, and frames as one message.

    frame 0   token (16 bytes) ‖ msgpack [sender, epoch, [[dtype, shape], ...], header]
    frame i   the bytes of tensor i, row-major, little-endian

In: a typed message with tensors, or frames that arrived. Out: frames, or a delivery; frames that are no valid message
of this run are refused, each with its cause, and endpoints drop and count them. The token is compared before anything
is parsed. The sender's name in the head is a claim, which open_delivery() checks against the peers that are known and
against the name that the connection's key stands for. Large tensors are not copied, in either direction.
"""

import hmac
import math
import sys
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import torch
from torch import Tensor

from ring_allreduce.errors import InvalidInput, InvalidMessage, MessageTooLarge
from ring_allreduce.transport.endpoint import Delivery
from ring_allreduce.transport.message import Codec, Count, Message, Name, Unacceptable
from ring_allreduce.transport.stats import DropCause, Lane, TransportStats

TOKEN_BYTES = 16
MAX_TENSORS = 8192
MAX_DIMENSIONS = 16
MAX_ELEMENTS = 1 << 48
"""Also the bound on the product of an empty tensor's other sizes, which torch multiplies into strides."""

COPY_BELOW_BYTES = 16 * 1024
"""Smaller bodies are copied on arrival: they may lie unaligned in a receive buffer, which they would keep alive."""

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
"""The dtypes that travel, by the names they have on the wire."""

DTYPE_NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}

_NUMPY_HAS = {torch.float32, torch.float64, torch.float16, torch.int64, torch.int8}

if sys.byteorder != "little":
    raise ImportError("ring_allreduce sends tensors as little-endian bytes; this machine is big-endian")


_Size = Annotated[int, msgspec.Meta(ge=0, le=MAX_ELEMENTS)]
_Shape = Annotated[list[_Size], msgspec.Meta(max_length=MAX_DIMENSIONS)]


class _Head(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    sender: Name
    epoch: Count
    tensors: Annotated[list[tuple[Name, _Shape]], msgspec.Meta(max_length=MAX_TENSORS)]
    header: msgspec.Raw


@dataclass(frozen=True)
class Opened:
    """The content of a valid message. `n_bytes` counts the head and the bodies."""

    sender: str
    epoch: int
    message: Message
    tensors: tuple[Tensor, ...]
    n_bytes: int


class Envelope:
    """Turns the messages of one run into frames, and back."""

    def __init__(self, codec: Codec, token: bytes, max_message_bytes: int) -> None:
        """`token`: the run's; InvalidInput is raised unless it has 16 bytes. `max_message_bytes`: of all frames."""
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
        """Return the frames of a message, and their bytes in all. The bodies are views of the tensors' memory.

        Raises InvalidInput for a kind or a tensor that cannot travel, MessageTooLarge beyond `max_message_bytes`.
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
        """Return the message in `frames`; large bodies stay where they lie. Raises InvalidMessage with its cause."""
        n_bytes = sum(frame.nbytes for frame in frames)
        if n_bytes > self._max_message_bytes:
            raise InvalidMessage(DropCause.TOO_LARGE, f"a message of {n_bytes} bytes")
        head = self._head(frames)
        bodies = frames[1:]
        if len(bodies) != len(head.tensors):
            raise InvalidMessage(DropCause.WRONG_SIZE, f"{len(bodies)} bodies for {len(head.tensors)} tensors")
        tensors = tuple(_tensor(body, *spec) for body, spec in zip(bodies, head.tensors, strict=True))
        try:
            message = self._codec.decode(head.header)
        except InvalidMessage as error:
            if error.cause != DropCause.UNKNOWN_KIND:
                error.claimed = head.sender, head.epoch
            raise
        return Opened(head.sender, head.epoch, message, tensors, n_bytes)

    def _head(self, frames: Sequence[memoryview]) -> _Head:
        head = bytes(frames[0]) if frames else b""
        if not hmac.compare_digest(head[:TOKEN_BYTES], self._token):
            raise InvalidMessage(DropCause.WRONG_TOKEN, "the message is not of this run")
        try:
            return self._decoder.decode(memoryview(head)[TOKEN_BYTES:])
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise InvalidMessage(DropCause.MALFORMED, f"not a valid head: {error}") from error


def open_delivery(
    envelope: Envelope,
    frames: Sequence[memoryview],
    peers: Container[str],
    lane: Lane,
    stats: TransportStats,
    proven: str | None = None,
) -> Delivery | None:
    """Return the delivery in `frames`, or None when it has to be dropped. Both are counted in `stats`; nothing is
    raised. A message of a kind that is known, with fields that no peer of ours sends, is delivered as `Unacceptable`.

    The message has to name a sender among `peers`, and `proven`, the name that the connection's key stands for (None:
    there are no keys, and nothing is proven).
    """
    try:
        opened = envelope.open(frames)
    except InvalidMessage as error:
        stats.dropped[DropCause(error.cause)] += 1
        if error.claimed is None:
            return None
        sender, sent_epoch = error.claimed
        if sender not in peers or proven not in (None, sender):
            return None
        return Delivery(sender, sent_epoch, Unacceptable(reason=str(error)), ())
    if opened.sender in peers and proven is not None and opened.sender != proven:
        stats.dropped[DropCause.FALSE_SENDER] += 1
        return None
    delivery = Delivery(opened.sender, opened.epoch, opened.message, opened.tensors)
    if not still_wanted(delivery, peers, stats):
        return None
    stats.received[opened.sender, lane].add(opened.n_bytes)
    return delivery


def still_wanted(delivery: Delivery, peers: Container[str], stats: TransportStats) -> bool:
    """Say whether a delivery, perhaps held back since it was opened, is of a known peer.

    It is counted in `stats` as dropped if not.
    """
    if delivery.sender not in peers:
        stats.dropped[DropCause.UNKNOWN_SENDER] += 1
        return False
    return True


def tensor_bytes(tensor: Tensor) -> memoryview:
    """Return the bytes of `tensor` in row-major order: a view of its memory when it is contiguous.

    Raises InvalidInput when its dtype, layout or device cannot travel.
    """
    if tensor.dtype not in DTYPE_NAMES or tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise InvalidInput(
            f"a dense CPU tensor of one of {', '.join(DTYPES)} can travel; "
            f"got {tensor.dtype} on {tensor.device} ({tensor.layout})"
        )
    flat = tensor.detach().contiguous()
    if flat.dim() == 1 and flat.dtype in _NUMPY_HAS:  # saves making a view, for the tensors that travel most
        return flat.numpy().data
    return flat.reshape(-1).view(torch.uint8).numpy().data


def byte_count(dtype: torch.dtype, shape: Sequence[int]) -> int:
    """Return the bytes of a dense tensor; exact for any shape, since Python integers do not overflow."""
    return dtype.itemsize * math.prod(shape)


def tensor_from(body: memoryview, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """Return a tensor over `body`, which has byte_count(dtype, shape) bytes and stays alive as long as the tensor does.

    Small, unaligned or read-only bodies are copied. torch warns about read-only memory, and rightly: a tensor that
    nobody may write to is a trap, so such a body is copied instead of the warning being silenced.
    """
    if not body.nbytes:
        return torch.empty(tuple(shape), dtype=dtype)
    copied = body.nbytes < COPY_BELOW_BYTES or body.readonly
    if dtype == torch.bool:
        # Any byte may have arrived, and torch does not define a bool that is neither 0 nor 1.
        return torch.frombuffer(bytearray(body), dtype=torch.uint8).ne(0).reshape(tuple(shape))
    tensor = torch.frombuffer(bytearray(body) if copied else body, dtype=dtype)
    if not copied and tensor.data_ptr() % dtype.itemsize:
        tensor = torch.frombuffer(bytearray(body), dtype=dtype)
    return tensor if len(shape) == 1 else tensor.reshape(tuple(shape))


def _tensor(body: memoryview, dtype_name: str, shape: list[int]) -> Tensor:
    dtype = DTYPES.get(dtype_name)
    if dtype is None:
        raise InvalidMessage(DropCause.MALFORMED, f"no dtype {dtype_name!r} travels")
    if len(shape) > MAX_DIMENSIONS or min(shape, default=0) < 0 or math.prod(filter(None, shape)) > MAX_ELEMENTS:
        raise InvalidMessage(DropCause.MALFORMED, "a shape that no tensor has")
    if byte_count(dtype, shape) != body.nbytes:
        raise InvalidMessage(DropCause.WRONG_SIZE, f"{body.nbytes} bytes for {dtype_name} of shape {shape}")
    return tensor_from(body, dtype, shape)
