"""Where peers of this machine reach an endpoint beside its ports: accepts their lines, and reads them lane by lane.

Decides who is admitted (same user, the run's token) and when a line is given up: when its sender hung up, or sent what
no peer of ours sends. Whose messages they are is decided where those of TCP are.
"""

import select
import socket
from collections import Counter, deque
from collections.abc import Iterator

from ring_allreduce.errors import InvalidMessage
from ring_allreduce.transport.shared.channel import same_user
from ring_allreduce.transport.shared.incoming import IncomingLine
from ring_allreduce.transport.shared.line_format import DATAGRAM_BYTES
from ring_allreduce.transport.shared.memory import AVAILABLE
from ring_allreduce.transport.stats import DropCause, Lane

BACKLOG = 256
MOST_UNKNOWN = 64
"""Lines that have not said hello; of more the oldest is closed."""


class SharedListener:
    """The lines to one endpoint. Belongs to the endpoint's thread."""

    def __init__(self, name: str, token: bytes, dropped: Counter[DropCause], max_message_bytes: int) -> None:
        """Listens at the abstract address `name`. Raises OSError when that is taken."""
        self._token = token
        self._max_message_bytes = max_message_bytes
        self._dropped = dropped
        self._scratch = bytearray(DATAGRAM_BYTES)
        self._unknown: dict[int, IncomingLine] = {}
        self._lines: dict[Lane, dict[int, IncomingLine]] = {lane: {} for lane in Lane}
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
        """Readable when look() would find something."""
        return self._epoll.fileno()

    def look(self) -> None:
        """See who has called and which lines have something to read."""
        found = self._epoll.poll(0)
        self._ready = {descriptor for descriptor, _ in found}
        for descriptor in self._ready & self._unknown.keys():
            self._welcome(descriptor)
        if self._listening.fileno() in self._ready:
            self._accept()

    def take(self, lane: Lane, most: int) -> Iterator[list[memoryview]]:
        """Up to `most` messages of the lines that look() found: of each in turn, who was served last comes last.

        Small frames are valid until the next one is taken.
        """
        lines = self._lines[lane]
        ready = deque(descriptor for descriptor in lines if descriptor in self._ready)
        while ready and most > 0:
            descriptor = ready.popleft()
            line = lines[descriptor]
            try:
                frames = line.receive(self._scratch)
                if frames is None:
                    continue
                most -= 1
                if frames:
                    yield frames
                line.give_back()
                ready.append(descriptor)
                lines[descriptor] = lines.pop(descriptor)
            except InvalidMessage as error:
                self._dropped[DropCause(error.cause)] += 1
                self._forget(lines, descriptor)
            except EOFError:
                self._forget(lines, descriptor)

    def close(self) -> None:
        """Hang up on everybody. Idempotent."""
        for lines in (self._unknown, *self._lines.values()):
            for line in lines.values():
                line.close()
            lines.clear()
        self._listening.close()
        self._epoll.close()

    def _accept(self) -> None:
        for _ in range(BACKLOG):
            try:
                connection, _where = self._listening.accept()
            except BlockingIOError:
                return
            except OSError:
                # No descriptor is left. Whoever calls from now on finds nobody, and uses TCP.
                self._epoll.unregister(self._listening)
                self._listening.close()
                return
            if not same_user(connection):
                self._dropped[DropCause.WRONG_TOKEN] += 1
                connection.close()
                continue
            connection.setblocking(False)
            line = IncomingLine(connection, self._max_message_bytes)
            self._epoll.register(line, select.EPOLLIN)
            self._unknown[line.fileno()] = line
            self._ready.add(line.fileno())
            self._welcome(line.fileno())
            if len(self._unknown) > MOST_UNKNOWN:
                self._forget(self._unknown, next(iter(self._unknown)))

    def _welcome(self, descriptor: int) -> None:
        line = self._unknown[descriptor]
        try:
            if not line.welcome(self._token):
                return  # it has not said anything yet
        except InvalidMessage as error:
            self._dropped[DropCause(error.cause)] += 1
        except EOFError:
            pass
        if line.lane is None:
            self._forget(self._unknown, descriptor)
        else:
            self._lines[line.lane][descriptor] = self._unknown.pop(descriptor)

    def _forget(self, lines: dict[int, IncomingLine], descriptor: int) -> None:
        line = lines.pop(descriptor)
        self._epoll.unregister(line)
        line.close()


def listen(name: str, token: bytes, dropped: Counter[DropCause], max_message_bytes: int) -> SharedListener | None:
    """A listener; None where the system has no memory to share, or somebody else has that address."""
    if not AVAILABLE:
        return None
    try:
        return SharedListener(name, token, dropped, max_message_bytes)
    except OSError:
        return None
