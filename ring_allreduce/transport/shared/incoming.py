"""The reader's end of a shared line (line.py): admits it, and finds each message's bodies where they lie.

What arrives is checked before it is believed: who sends anything that no sender of ours sends is hung up on by the
caller. Decides when to tell the sender what was taken.
"""

import hmac
import os
import socket
from collections import deque

from ring_allreduce.errors import InvalidMessage
from ring_allreduce.transport.envelope import MAX_TENSORS
from ring_allreduce.transport.shared.lent_memory import BorrowedMemory
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
from ring_allreduce.transport.shared.memory import ALIGNED_BYTES, AVAILABLE, MappedSlots
from ring_allreduce.transport.stats import DropCause, Lane

_MOST_ATTACHED_BYTES = socket.CMSG_SPACE(16 * DESCRIPTOR.size) if AVAILABLE else 0
_MOST_RETURNED = 4096


class IncomingLine:
    """The reader's end."""

    def __init__(self, connection: socket.socket, max_message_bytes: int) -> None:
        """`connection` was accepted, is of the same user and does not block."""
        self._connection = connection
        self._slots = MappedSlots(max_message_bytes + ALIGNED_BYTES * MAX_TENSORS)
        self._borrowed = BorrowedMemory()
        self._untold: deque[int] = deque()
        """Slots that are free again and of which the sender does not know. Only the line's own thread touches it."""
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
        """The frames of the next message, small ones in `scratch`; none when it only told what is gone, None when there
        is no message.

        Raises InvalidMessage for what no peer of ours sends, EOFError when it hung up.
        """
        try:
            n_bytes, attached, flags, _ = self._connection.recvmsg_into([scratch], _MOST_ATTACHED_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            raise EOFError from None
        descriptors = [one for *_, data in attached for (one,) in DESCRIPTOR.iter_unpack(data)]
        try:
            if not n_bytes:
                raise EOFError
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or len(descriptors) > 1:
                raise InvalidMessage(DropCause.MALFORMED, "no message of a shared line")
            return self._frames(memoryview(scratch)[:n_bytes], descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def give_back(self) -> None:
        """Tell the sender what was taken and let go of, when that is worth a message."""
        released, untold = self._slots.released, self._untold
        while released:  # never iterated: whoever lets go of a tensor appends to it, in any thread, at any moment
            untold.append(released.popleft())
        if self._taken * 2 < self._most and not any(map(self._slots.is_large, untold)):
            return
        slots = [untold.popleft() for _ in range(min(len(untold), _MOST_RETURNED))]
        data = b"".join(RETURNED.pack(number) for number in (self._taken, *slots))
        try:
            self._connection.send(data)
            self._taken = 0
        except BlockingIOError:
            untold.extendleft(reversed(slots))
        except OSError:
            self._taken = 0  # it hung up, and what it sent before is still to be read

    def close(self) -> None:
        """Memory that somebody here still holds stays."""
        self._connection.close()

    def _frames(self, data: memoryview, descriptors: list[int]) -> list[memoryview]:
        if self._taken >= self._most:
            raise InvalidMessage(DropCause.MALFORMED, "more messages than a shared line holds")
        head, start = Head.unpacked(data)
        lying = sum(head.sizes[: head.inline])
        fits = lying <= INLINE_BYTES and start + lying == data.nbytes
        if not fits or (head.inline < len(head.sizes)) != (head.slot != NOT_SHARED):
            raise InvalidMessage(DropCause.WRONG_SIZE, "a shared line's message of other sizes than it says")
        frames = []
        for size in head.sizes[: head.inline]:
            frames.append(data[start : start + size])
            start += size
        for number in head.gone:
            self._borrowed.forget(number)
        if head.inline < len(head.sizes):
            frames += self._elsewhere(head, descriptors)
        self._taken += 1
        return frames

    def _elsewhere(self, head: Head, descriptors: list[int]) -> list[memoryview]:
        """The frames that do not lie inline."""
        sizes = head.sizes[head.inline :]
        if not head.slot & LENT:
            for descriptor in descriptors:
                self._slots.add_segment(descriptor, head.place)
            return self._slots.views(head.slot, sizes)
        number = head.slot ^ LENT
        for descriptor in descriptors:
            self._borrowed.add(number, descriptor)
        if len(sizes) != 1:
            raise InvalidMessage(DropCause.WRONG_SIZE, f"{len(sizes)} bodies in lent memory, not 1")
        return [self._borrowed.view(number, head.place, sizes[0])]
