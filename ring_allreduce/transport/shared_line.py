"""One lane to a peer on this machine: a Unix socket that carries heads, beside memory that carries bodies.

Both ends of it: `OutgoingLine`, which connects, and `IncomingLine`, which was accepted. A datagram is one message:

    hello     MAGIC ‖ run token ‖ lane                                   first, and nothing else before it is accepted
    message   slot, slot size, frames inline, frames ‖ sizes ‖ the inline frames     a new segment travels with it
    return    taken, released slots …                                    back from the reader: what paces the sender

Frames that lie inline are valid until the next receive(). Who may connect: processes of the same user, by the
kernel's word, that know the token.
"""

import hmac
import os
import socket
import struct
from collections.abc import Sequence

from ring_allreduce.errors import InvalidMessage
from ring_allreduce.transport.envelope import MAX_TENSORS
from ring_allreduce.transport.frames import COPY_BELOW_BYTES
from ring_allreduce.transport.shared_memory import ALIGNED_BYTES, AVAILABLE, MappedSlots, SharedSlots
from ring_allreduce.transport.stats import DropCause, Lane

UNTAKEN = {Lane.PIPELINE: 16, Lane.BULK: 8}
"""Messages that may wait for the reader; beyond, the sender is held back, and one that does not mind is hung up on."""

INLINE_BYTES = COPY_BELOW_BYTES
"""Messages of so many bytes travel in the datagram: their bodies would be copied on arrival anyway."""

DATAGRAM_BYTES = 128 << 10
MAGIC = b"ravnest:shared:1"
_HEAD = struct.Struct("<IQHH")
_SIZE = struct.Struct("<Q")
_NOT_SHARED = (1 << 32) - 1
_RETURN = struct.Struct("<I")
_CREDENTIALS = struct.Struct("3i")
_DESCRIPTOR = struct.Struct("i")
_MOST_ATTACHED_BYTES = socket.CMSG_SPACE(16 * _DESCRIPTOR.size) if AVAILABLE else 0
_MOST_RETURNED = 4096
_BUFFER_BYTES = 1 << 20


def line_name(host: str, pipeline_port: int, bulk_port: int) -> str:
    """The abstract address of an endpoint's listener: of this network namespace only, as its ports are."""
    return f"\0ring_allreduce/{host}/{pipeline_port}/{bulk_port}"


def same_user(connection: socket.socket) -> bool:
    """Whether the other end's process is of the user that this one runs as."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[1]) == os.geteuid()


class OutgoingLine:
    """The sender's end."""

    def __init__(self, connection: socket.socket, lane: Lane) -> None:
        """Made by `connect`."""
        self._connection = connection
        self._slots = SharedSlots()
        self._new: int | None = None
        """A segment's descriptor that the next message takes along."""
        self._untaken = 0
        self._most = UNTAKEN[lane]
        self.full = False
        """Whether the socket had no room for the last message; it is writable when there is some again."""
        self.broken = False
        """The peer hung up, or nothing can be shared any more: it never takes anything again."""

    @classmethod
    def connect(cls, name: str, token: bytes, lane: Lane) -> "OutgoingLine | None":
        """A line to the listener called `name`; None when there is none here that is ours."""
        if not AVAILABLE:
            return None
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
            connection.connect(name)
            if same_user(connection):
                connection.send(MAGIC + token + lane.value.encode())
                return cls(connection, lane)
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
        """Send one message, if it takes() one; whether it was sent. Nothing is kept of `frames`."""
        views = [memoryview(frame).cast("B") for frame in frames]
        inline = len(views)
        if sum(view.nbytes for view in views) > INLINE_BYTES:
            inline = int(views[0].nbytes <= INLINE_BYTES)
        slot, slot_bytes = _NOT_SHARED, 0
        try:
            if inline < len(views):
                slot, slot_bytes = self._put(views[inline:])
            sizes = b"".join(_SIZE.pack(view.nbytes) for view in views)
            head = _HEAD.pack(slot, slot_bytes, inline, len(views)) + sizes
            rights = [] if self._new is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _DESCRIPTOR.pack(self._new))]
            self._connection.sendmsg([b"".join((head, *views[:inline]))], rights)
        except OSError as error:
            self._slots.release([slot])
            self.full = isinstance(error, BlockingIOError)
            self.broken = not self.full
            return False
        self.full = False
        self._untaken += 1
        if self._new is not None:
            os.close(self._new)
            self._new = None
        return True

    def close(self) -> None:
        """What was sent stays readable for the peer."""
        if self._new is not None:
            os.close(self._new)
            self._new = None
        self._slots = SharedSlots()
        self._connection.close()

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
        taken, *slots = (number for (number,) in _RETURN.iter_unpack(data)) if data and len(data) % 4 == 0 else (-1,)
        if not 0 <= taken <= self._untaken:
            self.broken = True
            return
        self._untaken -= taken
        self._slots.release(slots)


class IncomingLine:
    """The reader's end."""

    def __init__(self, connection: socket.socket, max_message_bytes: int) -> None:
        """`connection` was accepted, is of the same user and does not block."""
        self._connection = connection
        self._slots = MappedSlots(max_message_bytes + ALIGNED_BYTES * MAX_TENSORS)
        self._taken = 0
        self._most = 0
        self.lane: Lane | None = None
        """None before the hello."""

    def fileno(self) -> int:
        """Readable when there is something to receive."""
        return self._connection.fileno()

    def welcome(self, token: bytes) -> bool:
        """Take the hello; whether it was there. Raises InvalidMessage for a stranger's, EOFError when it hung up."""
        try:
            hello = self._connection.recv(DATAGRAM_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            raise EOFError from None
        if not hello:
            raise EOFError
        if not hmac.compare_digest(hello[: len(MAGIC) + len(token)], MAGIC + token):
            raise InvalidMessage(DropCause.WRONG_TOKEN, "a line that is not of this run")
        try:
            self.lane = Lane(hello[len(MAGIC) + len(token) :].decode())
        except ValueError as error:
            raise InvalidMessage(DropCause.MALFORMED, f"no lane: {error}") from None
        self._most = UNTAKEN[self.lane]
        return True

    def receive(self, scratch: bytearray) -> list[memoryview] | None:
        """The frames of the next message, small ones in `scratch`; None when there is none.

        Raises InvalidMessage for what no peer of ours sends, EOFError when it hung up.
        """
        try:
            n_bytes, attached, flags, _ = self._connection.recvmsg_into([scratch], _MOST_ATTACHED_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            raise EOFError from None
        descriptors = [one for *_, data in attached for (one,) in _DESCRIPTOR.iter_unpack(data)]
        try:
            if not n_bytes:
                raise EOFError
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or n_bytes < _HEAD.size or len(descriptors) > 1:
                raise InvalidMessage(DropCause.MALFORMED, "no message of a shared line")
            return self._frames(memoryview(scratch)[:n_bytes], descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def give_back(self) -> None:
        """Tell the sender what was taken and let go of, when that is worth a message."""
        released = self._slots.released
        if self._taken * 2 < self._most and not any(map(self._slots.is_large, released)):
            return
        slots = [released.popleft() for _ in range(min(len(released), _MOST_RETURNED))]
        data = b"".join(_RETURN.pack(number) for number in (self._taken, *slots))
        try:
            self._connection.send(data)
            self._taken = 0
        except BlockingIOError:
            released.extendleft(reversed(slots))
        except OSError:
            self._taken = 0  # it hung up, and what it sent before is still to be read

    def close(self) -> None:
        """Memory that somebody here still holds stays."""
        self._connection.close()

    def _frames(self, data: memoryview, descriptors: list[int]) -> list[memoryview]:
        slot, slot_bytes, inline, count = _HEAD.unpack_from(data)
        start = _HEAD.size + count * _SIZE.size
        if inline > count or start > data.nbytes or self._taken >= self._most:
            raise InvalidMessage(DropCause.MALFORMED, "a shared line's message of other sizes than it says")
        sizes = [size for (size,) in _SIZE.iter_unpack(data[_HEAD.size : start])]
        lying = sum(sizes[:inline])
        if lying > INLINE_BYTES or start + lying != data.nbytes or (inline < count) != (slot != _NOT_SHARED):
            raise InvalidMessage(DropCause.WRONG_SIZE, "a shared line's message of other sizes than it says")
        frames = []
        for size in sizes[:inline]:
            frames.append(data[start : start + size])
            start += size
        for descriptor in descriptors:
            self._slots.add_segment(descriptor, slot_bytes)
        if inline < count:
            frames += self._slots.views(slot, sizes[inline:])
        self._taken += 1
        return frames
