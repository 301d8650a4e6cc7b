"""Where peers on this machine reach an endpoint: a listener that accepts their channels and reads them lane by lane.

In: connections at an abstract Unix address, in the format of channel.py. Out: the frames of each message, and counts of
what was dropped. What arrives is checked before it is believed: a connection of another user or without the run's
token is refused, and one that sends what no peer of ours sends is closed. Which member a message comes from is decided
later, where the same is decided for TCP.
"""

import hmac
import os
import select
import socket
import time
from collections import Counter, deque
from collections.abc import Iterator

from ring_allreduce.errors import InvalidMessage
from ring_allreduce.transport.envelope import MAX_TENSORS
from ring_allreduce.transport.shared.channel import (
    DATAGRAM_BYTES,
    DESCRIPTOR,
    INLINE_BYTES,
    LENT,
    MAGIC,
    NOT_SHARED,
    RETURNED,
    UNTAKEN,
    Head,
    same_user,
)
from ring_allreduce.transport.shared.memory import ALIGNED_BYTES, AVAILABLE, BorrowedMemory, MappedSlots
from ring_allreduce.transport.stats import DropCause, Lane

BACKLOG = 256
MOST_UNKNOWN = 64
"""Connections that have not said hello yet; when there are more, the oldest is closed."""

HELLO_S = 10.0
"""A connection that has not said hello by then is closed."""

_MOST_ATTACHED_BYTES = socket.CMSG_SPACE(16 * DESCRIPTOR.size) if AVAILABLE else 0
_MOST_RETURNED = 4096


class IncomingChannel:
    """The reader's end of a channel: it finds the bodies of each message where they lie."""

    def __init__(self, connection: socket.socket, max_message_bytes: int) -> None:
        """`connection` was accepted, does not block, and is of a process of the same user."""
        self._connection = connection
        self._slots = MappedSlots(max_message_bytes + ALIGNED_BYTES * MAX_TENSORS)
        self._borrowed = BorrowedMemory()
        self._untold: deque[int] = deque()
        """Slots that are free and of which the sender has not been told. Only the endpoint's thread touches it."""
        self._taken = 0
        self._most = 0
        self.hello_by_s = time.monotonic() + HELLO_S
        self.lane: Lane | None = None
        """The lane that the hello named; None before the hello."""

    def fileno(self) -> int:
        """Return the socket, which is readable when there is something to receive."""
        return self._connection.fileno()

    def welcome(self, token: bytes) -> bool:
        """Read the hello, and return whether it was there.

        Raises InvalidMessage when it is not one of this run, EOFError when the sender hung up.
        """
        try:
            hello = self._connection.recv(DATAGRAM_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            raise EOFError from None
        if not hello:
            raise EOFError
        if not hmac.compare_digest(hello[: len(MAGIC) + len(token)], MAGIC + token):
            raise InvalidMessage(DropCause.WRONG_TOKEN, "a channel that is not of this run")
        try:
            self.lane = Lane(hello[len(MAGIC) + len(token) :].decode())
        except ValueError as error:
            raise InvalidMessage(DropCause.MALFORMED, f"no lane: {error}") from None
        self._most = UNTAKEN[self.lane]
        return True

    def receive(self, scratch: bytearray) -> list[memoryview] | None:
        """Return the frames of the next message, or None when there is none, [] when it only told which lent memory is
        gone.

        Frames that lie inline are views of `scratch`. Raises InvalidMessage for what no peer of ours sends, EOFError
        when the sender hung up.
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
                raise InvalidMessage(DropCause.MALFORMED, "no message of a shared-memory channel")
            return self._frames(memoryview(scratch)[:n_bytes], descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def give_back(self) -> None:
        """Tell the sender what was taken and which slots are free, when that is worth a message."""
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
            self._taken = 0  # the sender hung up, and what it sent before is still to be read

    def close(self) -> None:
        """Hang up. Memory that somebody here still holds stays mapped."""
        self._connection.close()

    def _frames(self, data: memoryview, descriptors: list[int]) -> list[memoryview]:
        if self._taken >= self._most:
            raise InvalidMessage(DropCause.MALFORMED, "more messages than a channel may hold")
        head, start = Head.unpacked(data)
        lying = sum(head.sizes[: head.inline])
        fits = lying <= INLINE_BYTES and start + lying == data.nbytes
        if not fits or (head.inline < len(head.sizes)) != (head.slot != NOT_SHARED):
            raise InvalidMessage(DropCause.WRONG_SIZE, "a message with other sizes than its head says")
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
        """Return the frames that do not lie inline."""
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


class SharedMemoryListener:
    """The channels to one endpoint. It belongs to the endpoint's thread."""

    def __init__(self, name: str, token: bytes, dropped: Counter[DropCause], max_message_bytes: int) -> None:
        """Listen at the abstract address `name`, and count in `dropped`. Raises OSError when the address is taken."""
        self._token = token
        self._max_message_bytes = max_message_bytes
        self._dropped = dropped
        self._scratch = bytearray(DATAGRAM_BYTES)
        self._unknown: dict[int, IncomingChannel] = {}
        self._channels: dict[Lane, dict[int, IncomingChannel]] = {lane: {} for lane in Lane}
        self._ready: set[int] = set()
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._epoll = select.epoll()
        try:
            self._listening.setblocking(False)
            self._listening.bind(name)
            self._listening.listen(BACKLOG)
            self._epoll.register(self._listening, select.EPOLLIN)
        except OSError:
            self.close()
            raise

    def fileno(self) -> int:
        """Return a descriptor that is readable when look() would find something."""
        return self._epoll.fileno()

    def look(self) -> None:
        """Accept new connections, and note which channels have something to read."""
        found = self._epoll.poll(0)
        self._ready = {descriptor for descriptor, _ in found}
        for descriptor in self._ready & self._unknown.keys():
            self._welcome(descriptor)
        if self._unknown:
            now_s = time.monotonic()
            for descriptor in [each for each, channel in self._unknown.items() if now_s >= channel.hello_by_s]:
                self._forget(self._unknown, descriptor)
        if self._listening.fileno() in self._ready:
            self._accept()

    def take(self, lane: Lane, most: int) -> Iterator[list[memoryview]]:
        """Return the frames of up to `most` messages of the channels that look() found, one of each channel in turn.

        The channel that was served last comes last the next time. Small frames are valid until the next message.
        """
        channels = self._channels[lane]
        ready = deque(descriptor for descriptor in channels if descriptor in self._ready)
        while ready and most > 0:
            descriptor = ready.popleft()
            channel = channels[descriptor]
            try:
                frames = channel.receive(self._scratch)
                if frames is None:
                    continue
                most -= 1
                if frames:
                    yield frames
                channel.give_back()
                ready.append(descriptor)
                channels[descriptor] = channels.pop(descriptor)
            except InvalidMessage as error:
                self._dropped[DropCause(error.cause)] += 1
                self._forget(channels, descriptor)
            except EOFError:
                self._forget(channels, descriptor)

    def close(self) -> None:
        """Hang up on everybody. A second call has no effect."""
        for channels in (self._unknown, *self._channels.values()):
            for channel in channels.values():
                channel.close()
            channels.clear()
        self._listening.close()
        self._epoll.close()

    def _accept(self) -> None:
        for _ in range(BACKLOG):
            try:
                connection, _where = self._listening.accept()
            except BlockingIOError:
                return
            except OSError:
                # No descriptor is left. Peers that connect from now on find nobody, and use TCP.
                self._epoll.unregister(self._listening)
                self._listening.close()
                return
            if not same_user(connection):
                self._dropped[DropCause.WRONG_TOKEN] += 1
                connection.close()
                continue
            connection.setblocking(False)
            channel = IncomingChannel(connection, self._max_message_bytes)
            self._epoll.register(channel, select.EPOLLIN)
            self._unknown[channel.fileno()] = channel
            self._ready.add(channel.fileno())
            self._welcome(channel.fileno())
            if len(self._unknown) > MOST_UNKNOWN:
                self._forget(self._unknown, next(iter(self._unknown)))

    def _welcome(self, descriptor: int) -> None:
        channel = self._unknown[descriptor]
        try:
            if not channel.welcome(self._token):
                return  # it has not said anything yet
        except InvalidMessage as error:
            self._dropped[DropCause(error.cause)] += 1
        except EOFError:
            pass
        if channel.lane is None:
            self._forget(self._unknown, descriptor)
        else:
            self._channels[channel.lane][descriptor] = self._unknown.pop(descriptor)

    def _forget(self, channels: dict[int, IncomingChannel], descriptor: int) -> None:
        channel = channels.pop(descriptor)
        self._epoll.unregister(channel)
        channel.close()


def listen(name: str, token: bytes, dropped: Counter[DropCause], max_message_bytes: int) -> SharedMemoryListener | None:
    """Return a listener at `name`, or None where the system has no memory to share, or the address is taken."""
    if not AVAILABLE:
        return None
    try:
        return SharedMemoryListener(name, token, dropped, max_message_bytes)
    except OSError:
        return None
