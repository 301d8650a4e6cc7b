"""One member's connection to its rendezvous, and the thread that gives signs of life on it.

In: the address of the rendezvous, and messages to it. Out: messages from it, or PeerLost once the line is dead. What
comes is read by the member's own thread, which also waits for chunks, so that nothing passes from thread to thread.
"""

import contextlib
import select
import socket
import threading
import time
from collections import deque

from ring_allreduce.errors import DeadlinePassed, InvalidMessage, PeerLost
from ring_allreduce.group.control_messages import (
    GREETING,
    RENDEZVOUS,
    AliveMessage,
    FrameReader,
    HeardMessage,
    framed,
    keep_alive,
)
from ring_allreduce.group.liveness import Report
from ring_allreduce.transport.message import Message
from ring_allreduce.transport.security.keys import Keys
from ring_allreduce.transport.zmq.encrypted_streams import EncryptedStream

RETRY_S = 0.1
SEND_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 5.0
PROBE_S = 1.0


def reach(host: str, port: int, timeout_s: float, keys: Keys | None = None) -> socket.socket:
    """Return a connection to a rendezvous, which may start after its members; encrypted when there are keys.

    Raises DeadlinePassed; InvalidInput when the rendezvous refuses the key.
    """
    if keys is not None:
        try:
            return EncryptedStream(host, port, keys, RENDEZVOUS, timeout_s)
        except DeadlinePassed as error:
            raise DeadlinePassed(f"{error.waited_for} ({_why_no_handshake(host, port)})", timeout_s) from None
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            return socket.create_connection((host, port), timeout=max(RETRY_S, deadline_s - time.monotonic()))
        except OSError as error:
            if time.monotonic() + RETRY_S > deadline_s:
                raise DeadlinePassed(f"reaching the rendezvous {host}:{port} ({error})", timeout_s) from error
            time.sleep(RETRY_S)


def _why_no_handshake(host: str, port: int) -> str:
    """Return what an ordinary connection shows of who listens there."""
    try:
        with socket.create_connection((host, port), timeout=PROBE_S) as probe:
            first = probe.recv(1)
    except TimeoutError:
        return "nobody answers there"
    except OSError as error:
        return f"nobody listens there: {error}"
    if first == GREETING:
        return f"who listens there has another key than this allow-list has for {RENDEZVOUS!r}"
    return "who listens there does not encrypt: it was given no keys"


class ControlLine:
    """The line to the rendezvous. All but its signs of life belongs to the thread of the group."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reader = FrameReader()
        self._inbox: deque[Message] = deque()
        self._dead: PeerLost | None = None
        self._sending = threading.Lock()
        self._over = threading.Event()
        self._signs: threading.Thread | None = None
        self.report = Report()
        """What the next sign of life says."""
        self.heard_s = time.monotonic()
        """When the rendezvous last said anything; inside average() it answers each sign of life."""
        connection.settimeout(SEND_TIMEOUT_S)
        keep_alive(connection)
        self._readable = select.poll()
        self._readable.register(connection, select.POLLIN)

    def fileno(self) -> int:
        """Return the descriptor that is readable when there may be something to hear."""
        return self._connection.fileno()

    def give_signs(self, every_s: float) -> None:
        """Say from now on, every `every_s` seconds, that this member lives."""
        self._signs = threading.Thread(target=self._give_signs, args=(every_s,), name="signs-of-life", daemon=True)
        self._signs.start()

    def next(self, timeout_s: float = 0.0) -> Message | None:
        """Return the next message, or None when none came within `timeout_s`. Raises PeerLost at every call on a dead
        line.
        """
        deadline_s = time.monotonic() + timeout_s if timeout_s else 0.0
        while not self._inbox:
            if self._dead is not None:
                raise self._dead
            left_s = max(0.0, deadline_s - time.monotonic()) if timeout_s else 0.0
            if not self._readable.poll(1000 * left_s):
                return None
            self._read()
        return self._inbox.popleft()

    def tell(self, message: Message) -> None:
        """Send `message`. Raises PeerLost when the connection is broken."""
        try:
            self._send(message)
        except OSError as error:
            raise PeerLost(RENDEZVOUS, f"its connection broke ({error})") from error

    def farewell(self, message: Message) -> None:
        """Send a last `message`, if anyone still listens."""
        with contextlib.suppress(OSError):
            self._send(message)

    def close(self) -> None:
        """Hang up, and leave no thread behind. A second call has no effect."""
        self._over.set()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        if self._signs is not None:
            self._signs.join(CLOSE_TIMEOUT_S)
        self._connection.close()

    def _send(self, message: Message) -> None:
        with self._sending:
            self._connection.sendall(framed(message))

    def _read(self) -> None:
        try:
            data = self._connection.recv(65536)
            self.heard_s = time.monotonic()
            self._inbox += [message for message in self._reader.feed(data) if not isinstance(message, HeardMessage)]
            if not data:
                self._dead = PeerLost(RENDEZVOUS, "its connection closed")
        except (OSError, InvalidMessage) as error:
            self._dead = PeerLost(RENDEZVOUS, f"its connection broke ({error})")

    def _give_signs(self, every_s: float) -> None:
        with contextlib.suppress(OSError):  # who reads the line hears that it is dead
            while not self._over.wait(every_s):
                self._send(AliveMessage(report=self.report))
