"""The messages between a group's members and their rendezvous: their fields, framing, and what they order.

In: messages, or bytes of a connection. Out: frames, or checked messages, and events of rounds/member.py or the error
that ends the group here (`order_of`). A frame on the TCP connection is four bytes of length (big-endian) and one
msgpack message. Tensors never travel here. When the other side dies its connection closes, which is how a death is
noticed at once. Nothing that comes over the network is used before it was checked.
"""

import math
import socket
import struct
from collections.abc import Mapping
from typing import Annotated

import msgspec

from ring_allreduce.errors import ContributionRefused, InvalidInput, InvalidMessage, LeftOut, MessageTooLarge, PeerLost
from ring_allreduce.group.liveness import Report
from ring_allreduce.rounds.events import CommitRound, Reform, Resume
from ring_allreduce.transport import Codec, Count, DropCause, Message, Name, PeerAddress, Seconds, Text
from ring_allreduce.transport.envelope import TOKEN_BYTES

RENDEZVOUS = "rendezvous"
"""The rendezvous's own name, in errors and in allow-lists."""

RING = "group"
"""The name of a group's only ring."""

MAX_FRAME_BYTES = 1024 * 1024
"""The largest frame. Its reader holds it whole, also when a stranger sends it."""

MOST_MEMBERS = 1000
"""The largest group. All its names and addresses, and why others are out, fit into one frame."""

KEY_DIGITS = 16
"""The number of digits of each public key by which two allow-lists are compared."""

MAX_REASON_CHARACTERS = 400
"""The longest reason that is sent. What is received may be a Text."""

FIRST_FRAME_BYTES = 4096
"""The largest frame of one who has not joined yet and whose key nobody has seen."""

KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""TCP keepalive in seconds, seconds and times: the kernel notices a vanished machine after a minute."""

GREETING = b"\xff"
"""The first byte of an encrypted connection (ZMTP, ZeroMQ RFC 23). Read as a length it would be far too long."""

_LENGTH = struct.Struct(">I")


_Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
_Rounds = Annotated[list[Count], msgspec.Meta(max_length=MOST_MEMBERS)]
_Names = Annotated[list[Name], msgspec.Meta(max_length=MOST_MEMBERS)]
_AllowList = Annotated[dict[Name, Name], msgspec.Meta(max_length=MOST_MEMBERS + 1)]
_Token = Annotated[bytes, msgspec.Meta(min_length=TOKEN_BYTES, max_length=TOKEN_BYTES)]


class MemberAddress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where one member's endpoint listens."""

    host: Name
    pipeline_port: _Port
    bulk_port: _Port


_Members = Annotated[dict[Name, MemberAddress], msgspec.Meta(max_length=MOST_MEMBERS)]


# From a member.


class JoinMessage(Message, frozen=True, kw_only=True, tag="join"):
    """A member asks to join; it gives its name, its address, and the number of members that it expects at the start.

    `comes_from` is its own address on the way to the rendezvous; it is empty when that is on the same machine.
    `allowed` has the names of its allow-list, each with the first KEY_DIGITS of its key; it is empty without keys.
    """

    name: Name
    size: Count
    address: MemberAddress
    comes_from: Name = ""
    allowed: _AllowList = {}  # noqa: RUF012 - msgspec copies it


class HeldMessage(Message, frozen=True, kw_only=True, tag="held"):
    """The member is in `epoch` and has stopped.

    `rounds` are those whose average it holds. `form` says in words what it averages.
    """

    epoch: Count
    rounds: _Rounds
    form: Text


class FinishedMessage(Message, frozen=True, kw_only=True, tag="finished"):
    """The member holds the average of `round`. `form` says in words what it averages there."""

    epoch: Count
    round: Count
    form: Text = ""


class SuspectedMessage(Message, frozen=True, kw_only=True, tag="suspected"):
    """What `member` sent to the sender of this message cannot be averaged."""

    epoch: Count
    member: Name
    reason: Text


class OverdueMessage(Message, frozen=True, kw_only=True, tag="overdue"):
    """The member has waited in average() for `waited_s`, as long as it was told to.

    The rendezvous measures that time itself.
    """

    round: Count
    waited_s: Seconds


class AliveMessage(Message, frozen=True, kw_only=True, tag="alive"):
    """The member gives a sign of life, and says how far it is."""

    report: Report


class LeavingMessage(Message, frozen=True, kw_only=True, tag="leaving"):
    """The member leaves, and says why."""

    reason: Text


# From the rendezvous.


class WelcomeMessage(Message, frozen=True, kw_only=True, tag="welcome"):
    """A new connection is told the token of this group's transport, and how often to give a sign of life."""

    token: _Token
    alive_every_s: Seconds


class HeardMessage(Message, frozen=True, kw_only=True, tag="heard"):
    """A member inside average() is told that its sign of life came, and so that the rendezvous lives."""


class RefusedMessage(Message, frozen=True, kw_only=True, tag="refused"):
    """One that asked to join is told that it cannot."""

    reason: Text


class ReformedMessage(Message, frozen=True, kw_only=True, tag="reformed"):
    """All members are told to stop and to answer with HeldMessage.

    `epoch` begins with these members, in passing order.
    """

    epoch: Count
    members: _Members
    committed: Count
    lost: Annotated[dict[Name, Text], msgspec.Meta(max_length=MOST_MEMBERS)]


class HandingOn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`holder` sends the average of `round` to the members `to`."""

    round: Count
    holder: Name
    to: _Names


class ResumedMessage(Message, frozen=True, kw_only=True, tag="resumed"):
    """All members are told that everybody is in `epoch`.

    What is not `kept` starts again. `first_round` is the receiver's first.
    """

    epoch: Count
    kept: _Rounds
    hand_on: Annotated[list[HandingOn], msgspec.Meta(max_length=MOST_MEMBERS)]
    first_round: Count


class CommittedMessage(Message, frozen=True, kw_only=True, tag="committed"):
    """All members are told that everyone holds the average of `round`."""

    epoch: Count
    round: Count


class PutOutMessage(Message, frozen=True, kw_only=True, tag="put_out"):
    """A member is told that `epoch` begins without it. `refused` is true if that is because of what it contributed."""

    epoch: Count
    reason: Text
    refused: bool


FROM_MEMBERS: tuple[type[Message], ...] = (
    JoinMessage,
    HeldMessage,
    FinishedMessage,
    SuspectedMessage,
    OverdueMessage,
    AliveMessage,
    LeavingMessage,
)
FROM_RENDEZVOUS: tuple[type[Message], ...] = (
    WelcomeMessage,
    HeardMessage,
    RefusedMessage,
    ReformedMessage,
    ResumedMessage,
    CommittedMessage,
    PutOutMessage,
)

CONTROL = Codec([*FROM_MEMBERS, *FROM_RENDEZVOUS])


def framed(message: Message) -> bytes:
    """Return `message` as one frame. Raises MessageTooLarge for one that no reader would take."""
    data = CONTROL.encode(message)
    if len(data) > MAX_FRAME_BYTES:
        raise MessageTooLarge(len(data), MAX_FRAME_BYTES)
    return _LENGTH.pack(len(data)) + data


def shortened(allowed: Mapping[str, str]) -> dict[str, str]:
    """Return an allow-list in the form of a JoinMessage."""
    return {name: public[:KEY_DIGITS] for name, public in allowed.items()}


def keep_alive(connection: socket.socket) -> None:
    """Send at once, and let `connection` break when the other machine is gone, though nothing is sent on it."""
    if connection.family == socket.AF_UNIX:
        return  # the end of an encrypted stream, which looks after itself
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        if hasattr(socket, option):  # not every system has all of them
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class FrameReader:
    """A reader cuts the bytes of a connection into messages."""

    def __init__(self, most_bytes: int = MAX_FRAME_BYTES) -> None:
        """`most_bytes`: the largest frame that it reads from now on."""
        self.most_bytes = most_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that `data` completes. Raises InvalidMessage for a frame too long or malformed."""
        self._buffer += data
        messages: list[Message] = []
        if self._buffer[:1] == GREETING:
            raise InvalidMessage(DropCause.MALFORMED, "the other side encrypts, and this one was given no keys")
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > self.most_bytes:
                raise InvalidMessage(DropCause.TOO_LARGE, f"a control frame of {length} bytes")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            messages.append(CONTROL.decode(bytes(self._buffer[_LENGTH.size : end])))
            del self._buffer[:end]
        return messages


def welcome_of(message: Message, me: str) -> WelcomeMessage:
    """Return the first answer to `me`.

    Raises InvalidInput for a refusal, and PeerLost for what no rendezvous of ours says.
    """
    if not isinstance(message, WelcomeMessage):
        order_of(message, me, 1)
        raise PeerLost(RENDEZVOUS, f"it answered with {message}")
    if not 0 < message.alive_every_s < math.inf:
        raise PeerLost(RENDEZVOUS, f"it wants a sign of life every {message.alive_every_s} s")
    return message


def order_of(message: Message, me: str, next_round: int) -> Reform | Resume | CommitRound:
    """Return what `message` orders `me`, whose `next_round` is under way.

    Raises LeftOut or ContributionRefused when the others go on without `me`, InvalidInput when `me` cannot join, and
    PeerLost for what no rendezvous of ours says.
    """
    match message:
        case ReformedMessage():
            if me not in message.members:
                raise PeerLost(RENDEZVOUS, f"it told {me!r} of epoch {message.epoch}, in which it is not")
            return Reform(message.epoch, {RING: tuple(message.members)}, message.committed, message.lost)
        case ResumedMessage():
            hand_on = tuple((RING, order.round, order.holder, tuple(order.to)) for order in message.hand_on)
            return Resume(message.epoch, tuple(message.kept), hand_on, {me: message.first_round})
        case CommittedMessage():
            return CommitRound(message.round, message.epoch)
        case PutOutMessage(refused=True):
            raise ContributionRefused(me, RING, next_round, message.reason)
        case PutOutMessage():
            raise LeftOut(me, message.epoch, message.reason)
        case RefusedMessage():
            raise InvalidInput(f"the rendezvous refused {me!r}: {message.reason}")
        case _:
            raise PeerLost(RENDEZVOUS, f"it sent {type(message).__name__} out of turn")


def peer_address(where: MemberAddress) -> PeerAddress:
    """Return where a member listens, in the transport's form."""
    return PeerAddress(where.host, where.pipeline_port, where.bulk_port)
