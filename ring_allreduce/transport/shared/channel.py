"""One lane to a peer on this machine: a Unix socket that carries heads, beside memory that carries bodies.

`OutgoingLine` is the end that connects; the other is incoming.py's. A datagram is one message:

    hello     MAGIC ‖ run token ‖ lane                 first, and nothing else before it is accepted
    message   head (line_format.py) ‖ frames inline    the others lie in a slot, or where the sender lends them
    return    taken, released slots …                  back from the reader: what paces the sender

A segment that the reader does not know yet travels as a descriptor with the first message that needs it. Frames that
lie inline are valid until the next receive(). Who may connect: processes of the same user, by the kernel's word, that
know the token.
"""

import os
import socket
import struct
from collections.abc import Sequence
from typing import NamedTuple

from ring_allreduce.transport.shared.lent_memory import LentMemory, LentNumbers, LentSegment
from ring_allreduce.transport.shared.line_format import (
    DATAGRAM_BYTES,
    DESCRIPTOR,
    INLINE_BYTES,
    LENT,
    MAGIC,
    NOT_SHARED,
    RETURNED,
    UNTAKEN,
    Head,
)
from ring_allreduce.transport.shared.memory import AVAILABLE, SharedSlots
from ring_allreduce.transport.stats import Lane

_CREDENTIALS = struct.Struct("3i")
_BUFFER_BYTES = 1 << 20


def line_name(host: str, pipeline_port: int, bulk_port: int) -> str:
    """The abstract address of an endpoint's listener: of this network namespace only, as its ports are."""
    return f"\0ring_allreduce/{host}/{pipeline_port}/{bulk_port}"


def same_user(connection: socket.socket) -> bool:
    """Whether the other end's process is of the user that this one runs as."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[1]) == os.geteuid()


class _Lending(NamedTuple):
    """A body in lent memory. `attached`: its segment's descriptor, for a reader that does not know the number yet."""

    segment: LentSegment
    offset: int
    number: int
    attached: int | None


class OutgoingLine:
    """The sender's end."""

    def __init__(self, connection: socket.socket, lane: Lane, lent: LentMemory) -> None:
        """Made by `connect`."""
        self._connection = connection
        self._lent = lent
        self._numbers = LentNumbers()
        self._slots = SharedSlots()
        self._new: int | None = None
        """Of a segment with slots: the descriptor that the next message in a slot takes along."""
        self._untaken = 0
        self._most = UNTAKEN[lane]
        self.full = False
        """Whether the socket had no room for the last message; it is writable when there is some again."""
        self.broken = False
        """The peer hung up, or nothing can be shared any more: it never takes anything again."""

    @classmethod
    def connect(cls, name: str, token: bytes, lane: Lane, lent: LentMemory) -> "OutgoingLine | None":
        """A line to the listener called `name`; None when there is none here that is ours.

        `lent`: what lies there is not copied.
        """
        if not AVAILABLE:
            return None
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
            connection.connect(name)
            if same_user(connection):
                connection.send(MAGIC + token + lane.value.encode())
                return cls(connection, lane, lent)
        except OSError:
            pass  # nobody listens: the peer is on another machine, or gone, or shares nothing
        connection.close()
        return None

    def fileno(self) -> int:
        """Readable when the reader has returned something."""
        return self._connection.fileno()

    def takes(self) -> bool:
        """Whether it takes another message now."""
        if self._untaken * 2 >= self._most:
            self._hear()
        return self._untaken < self._most and not self.broken

    def send(self, frames: Sequence[bytes | memoryview]) -> bool:
        """Send one message, if it takes() one; whether it was sent. Nothing is kept of `frames`.

        Without frames it is no message: the reader is told what is gone, and nobody else hears of it.
        """
        views = [memoryview(frame).cast("B") for frame in frames]
        inline = len(views)
        if sum(view.nbytes for view in views) > INLINE_BYTES:
            inline = int(views[0].nbytes <= INLINE_BYTES)
        self._lent.reap()
        gone, bodies = self._numbers.gone(), views[inline:]
        lent = self._lending(bodies)
        slot, place, attached = NOT_SHARED, 0, None
        try:
            if lent is not None:
                slot, place, attached = LENT | lent.number, lent.offset, lent.attached
            elif bodies:
                slot, place = self._put(bodies)
                attached = self._new
            head = Head(slot, place, inline, [*gone.values()], [view.nbytes for view in views])
            rights = [] if attached is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, DESCRIPTOR.pack(attached))]
            self._connection.sendmsg([b"".join((head.packed(), *views[:inline]))], rights)
        except OSError as error:
            self._slots.release([slot])
            self.full = isinstance(error, BlockingIOError)
            self.broken = not self.full
            return False
        self.full = False
        self._untaken += 1
        self._numbers.forget(gone)
        if lent is not None:
            self._numbers.give(lent.segment, lent.number)
        elif attached is not None:
            os.close(attached)
            self._new = None
        return True

    def tend(self) -> None:
        """Tell the reader what is gone, when no message has."""
        self._lent.reap()
        if self._numbers.gone() and self.takes():
            self.send([])

    def close(self) -> None:
        """What was sent stays readable for the peer."""
        if self._new is not None:
            os.close(self._new)
            self._new = None
        self._slots = SharedSlots()
        self._connection.close()

    def _lending(self, bodies: Sequence[memoryview]) -> "_Lending | None":
        """How the reader finds a body in lent memory; None for what lies elsewhere, and is copied."""
        if len(bodies) != 1 or (found := self._lent.find(bodies[0])) is None:
            return None
        segment, offset = found
        number = self._numbers.known(segment)
        if number is not None:
            return _Lending(segment, offset, number, None)
        number = self._numbers.free()
        return None if number is None else _Lending(segment, offset, number, segment.descriptor)

    def _put(self, bodies: Sequence[memoryview]) -> tuple[int, int]:
        if not self._slots.has_room(bodies):
            self._hear()
        slot, slot_bytes, new = self._slots.put(bodies)
        if new is not None:
            assert self._new is None  # what could not be sent is tried again before anything else is
            self._new = new
        return slot, slot_bytes

    def _hear(self) -> None:
        """What the reader has taken and let go of."""
        try:
            for _ in range(self._most):
                self._returned(self._connection.recv(DATAGRAM_BYTES))
        except BlockingIOError:
            pass
        except OSError:
            self.broken = True

    def _returned(self, data: bytes) -> None:
        taken, *slots = (number for (number,) in RETURNED.iter_unpack(data)) if data and len(data) % 4 == 0 else (-1,)
        if not 0 <= taken <= self._untaken:
            self.broken = True
            return
        self._untaken -= taken
        self._slots.release(slots)
