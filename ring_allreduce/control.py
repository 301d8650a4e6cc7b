"""What a group's members and their rendezvous say to each other, and how it is framed on a TCP connection.

A frame is four bytes of length (big-endian) and one msgpack message. Tensors never travel here. When the
other side dies its connection closes, which is how a death is noticed at once.
"""

import socket
import struct

import msgspec

from ring_allreduce.errors import InvalidMessage
from ring_allreduce.transport.message import Codec, Message
from ring_allreduce.transport.stats import DropCause

MAX_FRAME_BYTES = 64 * 1024

KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Seconds, seconds, times: a machine that vanished without a word is noticed by the kernel after a minute."""

_LENGTH = struct.Struct(">I")


class MemberAddress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where one member's endpoint listens."""

    host: str
    pipeline_port: int
    bulk_port: int


class Welcome(Message, frozen=True, kw_only=True, tag="welcome"):
    """To a new connection: the token of this group's transport."""

    token: bytes


class Join(Message, frozen=True, kw_only=True, tag="join"):
    """From a member: its name, its address, and how many members it expects."""

    name: str
    size: int
    address: MemberAddress


class Roster(Message, frozen=True, kw_only=True, tag="roster"):
    """To all, once all are there."""

    epoch: int
    members: dict[str, MemberAddress]


class Called(Message, frozen=True, kw_only=True, tag="called"):
    """From a member: it has called average() `calls` times."""

    calls: int


class Opened(Message, frozen=True, kw_only=True, tag="opened"):
    """To all: everyone has called; contribute to `round`."""

    round: int


class Finished(Message, frozen=True, kw_only=True, tag="finished"):
    """From a member: it holds the average of `round`."""

    round: int


class Committed(Message, frozen=True, kw_only=True, tag="committed"):
    """To all: everyone holds the average of `round`."""

    round: int


class Refused(Message, frozen=True, kw_only=True, tag="refused"):
    """To one who wanted to join and cannot."""

    reason: str


class Failed(Message, frozen=True, kw_only=True, tag="failed"):
    """To all: `member` is lost; nothing more will be averaged."""

    member: str
    reason: str


CONTROL = Codec([Welcome, Join, Roster, Called, Opened, Finished, Committed, Refused, Failed])


def send_message(connection: socket.socket, message: Message) -> None:
    """Send one frame. Raises OSError when the connection is gone or takes nothing within its timeout."""
    data = CONTROL.encode(message)
    connection.sendall(_LENGTH.pack(len(data)) + data)


def keep_alive(connection: socket.socket) -> None:
    """Let `connection` break when the other machine is gone, though nothing is sent on it."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        if hasattr(socket, option):  # not every system has all of them
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class FrameReader:
    """Cuts the bytes of a connection into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """The messages that `data` completes. Raises InvalidMessage for a frame too long or malformed."""
        self._buffer += data
        messages = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MAX_FRAME_BYTES:
                raise InvalidMessage(DropCause.TOO_LARGE, f"a control frame of {length} bytes")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            messages.append(CONTROL.decode(bytes(self._buffer[_LENGTH.size : end])))
            del self._buffer[:end]
        return messages
