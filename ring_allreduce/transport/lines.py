"""Typed messages with tensors over lines: encrypted connections that one side opens and both sides use.

Endpoints connect to each other both ways, and so each of them listens. Who only opens connections outwards, as behind a
home router, uses lines instead: a `Lines` that listens takes those of others, and one that does not dials. A line is an
encrypted stream (zmq/encrypted_streams.py), in which each message is a frame:

    length (4 bytes) ‖ parts (2) ‖ for each part its length (4) and its bytes        big-endian; parts as in envelope.py

One thread owns all sockets; send(), take(), trust() and hang_up() may be called by any. Nothing that comes is used
before it was checked: garbage, a frame that is too long, and more than `most_unread_bytes` that nobody has taken end
the line that they came on, and no other. Who may hold how much is for the user to agree on by messages: send() queues,
and a line that takes nothing is ended once `most_queued_bytes` wait for it. Somebody may open many lines, so there is a
bound for all of them together, too: beyond `most_bytes` the line that holds most is ended.

In: messages for lines. Out: lines that open and close, and what they say, in each line's order.
"""

import contextlib
import queue
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ring_allreduce.errors import InvalidMessage, TransportError
from ring_allreduce.transport.envelope import Envelope
from ring_allreduce.transport.message import Codec, Message
from ring_allreduce.transport.security.keys import Keys
from ring_allreduce.transport.stats import DropCause
from ring_allreduce.transport.zmq.encrypted_streams import EncryptedListener, EncryptedStream

UNTRUSTED_BYTES = 4096
"""The largest frame of a line that was not trusted yet, and all that it may have unread."""

LEAST_BYTES = 1024
"""An unread message counts as at least so many, since Python's objects need more than a short message has."""

MOST_PARTS, READ_BYTES = 64, 1 << 18
CLOSE_S = 10.0
"""The time for which close() waits for the thread, which has nothing to do but to send what is queued and to end."""

LINGER_S = 2.0
"""What was queued before close() is sent for at most so long."""

_LENGTH, _PARTS = struct.Struct(">I"), struct.Struct(">H")


@dataclass(frozen=True)
class LineOpened:
    """Somebody has opened a line. `key_name`: the name of the key in the allow-list that it proved to have."""

    line: int
    key_name: str


@dataclass(frozen=True)
class LineSaid:
    """A message has come on a line."""

    line: int
    message: Message
    tensors: tuple[Tensor, ...]


@dataclass(frozen=True)
class LineClosed:
    """A line has ended; nothing more comes from it, and nothing reaches it."""

    line: int
    reason: str


LineEvent = LineOpened | LineSaid | LineClosed


class _Line:
    def __init__(self, number: int, connection: socket.socket, most_frame_bytes: int) -> None:
        self.number = number
        self.socket = connection
        self.most_frame_bytes = most_frame_bytes
        self.incoming = bytearray()
        self.outgoing: deque[memoryview] = deque()  # under the lock of Lines
        self.queued_bytes = self.unread_bytes = 0  # under the lock of Lines
        self.hang_up: str | None = None  # under the lock of Lines

    @property
    def held_bytes(self) -> int:
        """What is held because of it."""
        return len(self.incoming) + self.queued_bytes + self.unread_bytes


class Lines:
    """The lines of one process. Numbers of lines are never used again."""

    def __init__(
        self,
        codec: Codec,
        token: bytes,
        *,
        listen: tuple[str, int, Keys] | None = None,
        max_message_bytes: int = 4 << 20,
        most_unread_bytes: int = 64 << 20,
        most_queued_bytes: int = 256 << 20,
        most_bytes: int = 1 << 30,
    ) -> None:
        """`listen`: host, port (0: any free one) and the keys of this end. Raises TransportError."""
        self._envelope = Envelope(codec, token, max_message_bytes)
        self._max_message_bytes = max_message_bytes
        self._most_unread_bytes, self._most_queued_bytes = most_unread_bytes, most_queued_bytes
        self._most_bytes = most_bytes
        self._listener = None if listen is None else EncryptedListener(*listen)
        self._lock = threading.Lock()
        self._lines: dict[int, _Line] = {}  # under the lock; only the thread takes lines out
        self._held_bytes = 0  # under the lock: of all lines, and what is unread of lines that have ended
        self._next = 0
        self._new: deque[_Line] = deque()  # under the lock
        self._events: queue.SimpleQueue[tuple[LineEvent | None, int]] = queue.SimpleQueue()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_writer.setblocking(False)
        self._wake_reader.setblocking(False)
        self._closing = False
        self._ended = False  # under the lock: the thread serves no line any more
        self._failure: Exception | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        if self._listener is not None:
            self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="lines", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int | None:
        """Where it listens; None for one that only dials."""
        return None if self._listener is None else self._listener.getsockname()[1]

    def dial(self, host: str, port: int, keys: Keys, peer: str, timeout_s: float) -> int:
        """Open a line to the Lines of `peer`; returns its number. Frames of any length are taken from it at once.

        Raises InvalidInput where `peer` refuses the key, DeadlinePassed without a handshake in time, TransportError
        where these lines have ended.
        """
        stream = EncryptedStream(host, port, keys, peer, timeout_s)
        with self._lock:
            line = self._added(stream, self._max_message_bytes)
            self._new.append(line)
        self._wake()
        return line.number

    def send(self, line: int, message: Message, tensors: Sequence[Tensor] = ()) -> None:
        """Queue a message; the tensors are copied. What is for a line that has ended is lost.

        Raises MessageTooLarge, or InvalidInput for what cannot travel.
        """
        parts, _ = self._envelope.seal("line", 0, message, tensors)
        body = bytearray(_PARTS.pack(len(parts)))
        for part in parts:
            data = memoryview(part).cast("B")
            body += _LENGTH.pack(data.nbytes)
            body += data
        frame = memoryview(_LENGTH.pack(len(body)) + bytes(body))
        with self._lock:
            if (known := self._lines.get(line)) is None:
                return
            known.outgoing.append(frame)
            known.queued_bytes += frame.nbytes
            self._hold(frame.nbytes)
            if known.queued_bytes > self._most_queued_bytes:
                known.hang_up = known.hang_up or "it takes nothing"
        self._wake()

    def take(self, timeout_s: float) -> list[LineEvent]:
        """Return what has happened; wait for at most `timeout_s` when nothing has.

        Raises TransportError once the thread that owns the sockets has ended by an error.
        """
        if self._failure is not None:
            raise TransportError(f"no line is served any more: {self._failure!r}") from self._failure
        taken: list[tuple[LineEvent | None, int]] = []
        with contextlib.suppress(queue.Empty):
            taken.append(self._events.get(timeout=timeout_s) if timeout_s > 0 else self._events.get_nowait())
            while True:
                taken.append(self._events.get_nowait())
        with self._lock:
            self._held_bytes -= sum(n_bytes for _, n_bytes in taken)
            for event, n_bytes in taken:
                if event is not None and (line := self._lines.get(event.line)) is not None:
                    line.unread_bytes -= n_bytes
        return [event for event, _ in taken if event is not None]

    def trust(self, line: int) -> None:
        """Take frames of any length from a line of which it is known now who is behind it."""
        with self._lock:
            if (known := self._lines.get(line)) is not None:
                known.most_frame_bytes = self._max_message_bytes

    def hang_up(self, line: int, reason: str) -> None:
        """Send what is queued for a line, as far as it takes it at once, and end it."""
        with self._lock:
            if (known := self._lines.get(line)) is not None:
                known.hang_up = known.hang_up or reason
        self._wake()

    def wake(self) -> None:
        """Let take() return early, from any thread."""
        self._events.put((None, 0))

    def close(self) -> None:
        """Send what is queued, for at most LINGER_S, and end all lines. A second call has no effect."""
        self._closing = True
        self._wake()
        self._thread.join(CLOSE_S)

    def _wake(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):  # a full pipe: a wake is on its way
            if not self._ended:  # else its descriptor may be another file's by now
                self._wake_writer.send(b"\0")

    def _hold(self, n_bytes: int) -> None:
        """So much more is held. Beyond the bound the line ends that holds most; the lock is held."""
        self._held_bytes += n_bytes
        if self._held_bytes > self._most_bytes and self._lines:
            most = max(self._lines.values(), key=lambda line: line.held_bytes)
            most.hang_up = most.hang_up or f"all lines together hold {self._held_bytes} bytes, and it holds most"

    def _added(self, connection: socket.socket, most_frame_bytes: int) -> _Line:
        """Number a new line; the lock is held. Raises TransportError once no line is served any more."""
        if self._ended:
            connection.close()
            raise TransportError("no line can be opened any more: this side has ended")
        connection.setblocking(False)
        line = _Line(self._next, connection, most_frame_bytes)
        self._lines[self._next] = line
        self._next += 1
        return line

    def _serve(self) -> None:
        try:
            while not self._closing:
                self._turn(None)
            ends_s = time.monotonic() + LINGER_S
            while time.monotonic() < ends_s:
                with self._lock:
                    waiting = any(line.outgoing for line in self._lines.values())
                if not waiting:
                    break
                self._turn(0.05)
        except Exception as error:  # noqa: BLE001 - told by take(), whose thread can raise it
            self._failure = error
        finally:
            with self._lock:
                self._ended = True
                remaining = list(self._lines.values())
                self._wake_writer.close()
            for line in remaining:
                self._end(line, "this side has ended")
            if self._listener is not None:
                self._listener.close()
            self._selector.close()
            self._wake_reader.close()

    def _turn(self, timeout_s: float | None) -> None:
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj is self._wake_reader:
                with contextlib.suppress(BlockingIOError):
                    self._wake_reader.recv(4096)
            elif key.fileobj is self._listener:
                self._accept()
            else:
                self._read(key.data)
        with self._lock:  # once for both: a line that is new a moment later is not busy yet
            new, self._new = self._new, deque()
            busy = [line for line in self._lines.values() if line.outgoing or line.hang_up]
        for line in new:
            self._selector.register(line.socket, selectors.EVENT_READ, line)
        for line in busy:
            self._write(line)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, key_name = self._listener.accept()
        except OSError as error:
            # The listener tells so once, and its descriptor stays readable: it is not asked again.
            self._selector.unregister(self._listener)
            if not self._closing:
                raise TransportError(f"no line can be opened any more: {error}") from error
            return
        with self._lock:
            line = self._added(connection, UNTRUSTED_BYTES)
        self._events.put((LineOpened(line.number, key_name), 0))
        self._selector.register(line.socket, selectors.EVENT_READ, line)

    def _read(self, line: _Line) -> bool:
        """Take what has come; returns whether more may be there."""
        if line.number not in self._lines:
            return False
        try:
            data, reason = line.socket.recv(READ_BYTES), "the other side has ended, or cannot be reached"
        except BlockingIOError:
            return False
        except OSError as error:
            data, reason = b"", f"its connection broke ({error})"
        if not data:
            self._end(line, reason)
            return False
        with self._lock:
            line.incoming += data
            self._hold(len(data))
        try:
            self._cut(line)
        except InvalidMessage as error:
            self._end(line, f"it sent what is no message ({error})")
        return True

    def _cut(self, line: _Line) -> None:
        """Hand on the messages that are whole. Raises InvalidMessage."""
        while len(line.incoming) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(line.incoming)
            if length > line.most_frame_bytes:
                raise InvalidMessage(DropCause.TOO_LARGE, f"a frame of {length} bytes")
            end = _LENGTH.size + length
            if len(line.incoming) < end:
                return
            frame = memoryview(bytearray(memoryview(line.incoming)[_LENGTH.size : end]))
            opened = self._envelope.open(parts_of(frame))
            counted = max(length, LEAST_BYTES)
            with self._lock:
                most = UNTRUSTED_BYTES if line.most_frame_bytes == UNTRUSTED_BYTES else self._most_unread_bytes
                if line.unread_bytes + counted > most:
                    raise InvalidMessage(DropCause.TOO_LARGE, "more than it was allowed to send")
                del line.incoming[:end]
                line.unread_bytes += counted
                self._hold(counted - end)
            self._events.put((LineSaid(line.number, opened.message, opened.tensors), counted))

    def _write(self, line: _Line) -> None:
        blocked = False
        while not blocked:
            with self._lock:  # once for both: what is queued before the word to hang up goes first
                head, hang_up = line.outgoing[0] if line.outgoing else None, line.hang_up
            if head is None:
                break
            try:
                sent = line.socket.send(head)
            except BlockingIOError:
                blocked = True
                continue
            except OSError as error:
                while self._read(line):
                    pass  # what it said before it went
                self._end(line, f"its connection broke ({error})")
                return
            with self._lock:
                line.queued_bytes -= sent
                self._held_bytes -= sent
                line.outgoing.popleft()
                if sent < head.nbytes:
                    line.outgoing.appendleft(head[sent:])
        if hang_up is not None:
            self._end(line, hang_up)
        elif line.number in self._lines:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if blocked else 0)
            if self._selector.get_key(line.socket).events != wanted:
                self._selector.modify(line.socket, wanted, line)

    def _end(self, line: _Line, reason: str) -> None:
        with self._lock:
            if self._lines.pop(line.number, None) is None:
                return
            self._held_bytes -= line.held_bytes - line.unread_bytes
        with contextlib.suppress(KeyError):
            self._selector.unregister(line.socket)
        line.socket.close()
        self._events.put((LineClosed(line.number, reason), 0))


def parts_of(frame: memoryview) -> list[memoryview]:
    """The parts of a frame. Raises InvalidMessage for one whose lengths do not add up."""
    if frame.nbytes < _PARTS.size:
        raise InvalidMessage(DropCause.WRONG_SIZE, "a frame without parts")
    (count,) = _PARTS.unpack_from(frame)
    parts, at = [], _PARTS.size
    for _ in range(min(count, MOST_PARTS + 1)):
        if frame.nbytes < at + _LENGTH.size:
            raise InvalidMessage(DropCause.WRONG_SIZE, "a part without a length")
        (length,) = _LENGTH.unpack_from(frame, at)
        at += _LENGTH.size
        if frame.nbytes < at + length:
            raise InvalidMessage(DropCause.WRONG_SIZE, "a part that is longer than its frame")
        parts.append(frame[at : at + length])
        at += length
    if count > MOST_PARTS or at != frame.nbytes:
        raise InvalidMessage(DropCause.WRONG_SIZE, f"{count} parts in {frame.nbytes} bytes")
    return parts
