"""The channel to a peer on this machine: a Unix socket that carries heads, beside shared memory that carries bodies.

A datagram of the socket is one of these:

    hello     MAGIC ‖ run token ‖ lane         the first from the sender, which nothing may precede
    message   head ‖ frames that lie inline    from the sender
    return    taken u32 ‖ released slots u32…  from the reader: how many messages it has taken, and which slots are free

The head of a message says where its frames lie:

    slot u32, place u64, frames inline u16, frames u16, gone u16 ‖ u32 of each number gone ‖ u64 of each frame's size

`slot` is NOT_SHARED when all frames lie inline; LENT | number when the only other frame lies in lent memory, `place`
bytes into its segment; else the slot, `place` bytes large, that holds the other frames. `gone` lists the numbers of
lent segments that the reader may forget. A segment that the reader does not know yet travels as a descriptor beside the
first message that needs it.

The format and the sender's end are here; the reader's end is in listener.py. Only processes of the same user, as the
kernel tells, that know the run's token are connected.
"""

import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ring_allreduce.errors import InvalidMessage
from ring_allreduce.transport.envelope import COPY_BELOW_BYTES
from ring_allreduce.transport.shared.memory import AVAILABLE, LentMemory, LentNumbers, LentSegment, SharedSlots
from ring_allreduce.transport.stats import DropCause, Lane

MAGIC = b"ravnest:shared:2"

UNTAKEN = {Lane.PIPELINE: 16, Lane.BULK: 8}
"""Messages that may wait for the reader. At this number the sender waits; a sender that does not is hung up on."""

INLINE_BYTES = COPY_BELOW_BYTES
"""Messages of at most so many bytes travel in the datagram: their bodies would be copied on arrival anyway."""

DATAGRAM_BYTES = 128 << 10
RETURNED = struct.Struct("<I")
DESCRIPTOR = struct.Struct("i")

NOT_SHARED = (1 << 32) - 1
LENT = 1 << 31

_FIXED = struct.Struct("<IQHHH")
_CREDENTIALS = struct.Struct("3i")
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a message: where its frames lie, and which lent segments the reader may forget."""

    slot: int
    place: int
    inline: int
    gone: Sequence[int]
    sizes: Sequence[int]

    def packed(self) -> bytes:
        """Return the head as bytes."""
        fixed = _FIXED.pack(self.slot, self.place, self.inline, len(self.sizes), len(self.gone))
        return fixed + struct.pack(f"<{len(self.gone)}I{len(self.sizes)}Q", *self.gone, *self.sizes)

    @classmethod
    def unpacked(cls, data: memoryview) -> tuple["Head", int]:
        """Return the head at the start of `data`, and its length in bytes. Raises InvalidMessage when there is none."""
        if data.nbytes >= _FIXED.size:
            slot, place, inline, frames, gone = _FIXED.unpack_from(data)
            numbers = struct.Struct(f"<{gone}I{frames}Q")
            end = _FIXED.size + numbers.size
            if inline <= frames and end <= data.nbytes:
                found = numbers.unpack_from(data, _FIXED.size)
                return cls(slot, place, inline, found[:gone], found[gone:]), end
        raise InvalidMessage(DropCause.MALFORMED, "no message of a shared-memory channel")


def channel_name(host: str, pipeline_port: int, bulk_port: int) -> str:
    """Return the abstract Unix address of an endpoint's listener. Like a port, it is of this network namespace only."""
    return f"\0ring_allreduce/{host}/{pipeline_port}/{bulk_port}"


def same_user(connection: socket.socket) -> bool:
    """Say whether the process at the other end runs as the user that this one runs as."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[1]) == os.geteuid()


class _Lending(NamedTuple):
    """Where a body lies in lent memory. `attached`: its segment's descriptor, if the reader does not know it yet."""

    segment: LentSegment
    offset: int
    number: int
    attached: int | None


class OutgoingChannel:
    """The sender's end of a channel."""

    def __init__(self, connection: socket.socket, lane: Lane, lent: LentMemory) -> None:
        """Use `connect`, which makes one."""
        self._connection = connection
        self._lent = lent
        self._numbers = LentNumbers()
        self._slots = SharedSlots()
        self._new: int | None = None
        """The descriptor of a new segment of slots, which the next message in a slot takes along."""
        self._untaken = 0
        self._most = UNTAKEN[lane]
        self._full = False
        """Whether the socket had no room for the last message; it becomes writable when there is room again."""
        self.broken = False
        """Whether the peer hung up, or no memory can be shared any more: it never takes anything again."""

    @classmethod
    def connect(cls, name: str, token: bytes, lane: Lane, lent: LentMemory) -> "OutgoingChannel | None":
        """Return a channel to the listener at the address `name`, or None when no process of ours listens there.

        `lent`: what this process lends; bodies that lie in it are not copied.
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

    def takes(self) -> bool:
        """Say whether the channel takes another message now."""
        if self._untaken * 2 >= self._most:
            self._hear()
        return self._untaken < self._most and not self.broken

    def send(self, frames: Sequence[bytes | memoryview]) -> bool:
        """Send one message, when takes() allows it, and return whether it was sent. Nothing is kept of `frames`.

        Without frames it is no message: the reader only learns which lent segments are gone.
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
            self._full = isinstance(error, BlockingIOError)
            self.broken = not self._full
            return False
        self._full = False
        self._untaken += 1
        self._numbers.forget(gone)
        if lent is not None:
            self._numbers.give(lent.segment, lent.number)
        elif attached is not None:
            os.close(attached)
            self._new = None
        return True

    def watch(self) -> tuple[int, bool]:
        """Return the socket, and whether to wait until it is writable (else readable): then takes() may have
        changed.
        """
        return self._connection.fileno(), self._full

    def tend(self, now_s: float) -> None:
        """Tell the reader which lent segments are gone, if no message has told it."""
        self._lent.reap()
        if self._numbers.gone() and self.takes():
            self.send([])

    def close(self, linger_ms: int = 0) -> None:
        """Hang up. What was sent stays readable for the peer, whenever it reads it."""
        if self._new is not None:
            os.close(self._new)
            self._new = None
        self._slots = SharedSlots()
        self._connection.close()

    def _lending(self, bodies: Sequence[memoryview]) -> _Lending | None:
        """Return how the reader finds a single body in lent memory; None for bodies elsewhere, which are copied."""
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
        """Read what the reader has taken and let go of."""
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
