"""One member's connection to its rendezvous, with the thread that listens on it and gives signs of life.

Decides nothing: what comes is put into an inbox, in order, and `wake` tells the one who waits for it.
"""

import contextlib
import queue
import select
import socket
import threading
import time
from collections.abc import Callable

from ring_allreduce.control import Alive, FrameReader, framed, keep_alive
from ring_allreduce.errors import DeadlinePassed, InvalidMessage, PeerLost
from ring_allreduce.group_orders import RENDEZVOUS
from ring_allreduce.transport.encrypted_stream import EncryptedStream
from ring_allreduce.transport.keys import Keys
from ring_allreduce.transport.message import Message
from ring_allreduce.watch import Report

RETRY_S = 0.1
SEND_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 5.0


def reach(host: str, port: int, timeout_s: float, keys: Keys | None = None) -> socket.socket:
    """A connection to a rendezvous, which may start after its members; encrypted when there are keys.

    Raises DeadlinePassed; InvalidInput when the rendezvous refuses the key.
    """
    if keys is not None:
        return EncryptedStream(host, port, keys, RENDEZVOUS, timeout_s)
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            return socket.create_connection((host, port), timeout=max(RETRY_S, deadline_s - time.monotonic()))
        except OSError as error:
            if time.monotonic() + RETRY_S > deadline_s:
                raise DeadlinePassed(f"reaching the rendezvous {host}:{port} ({error})", timeout_s) from error
            time.sleep(RETRY_S)


class ControlLine:
    """`tell` and `next` belong to the thread of the group; the connection is listened to in another."""

    def __init__(self, connection: socket.socket, wake: Callable[[], None]) -> None:
        """`wake` is called, in the listening thread, after something was put into the inbox."""
        self._connection = connection
        self._wake = wake
        self._inbox: queue.SimpleQueue[Message | PeerLost] = queue.SimpleQueue()
        self._sending = threading.Lock()
        self._alive_every_s: float | None = None
        self.report = Report()
        """What the next sign of life says."""
        connection.settimeout(SEND_TIMEOUT_S)
        keep_alive(connection)
        self._thread = threading.Thread(target=self._listen, name="group-control", daemon=True)
        self._thread.start()

    def give_signs(self, every_s: float) -> None:
        """From now on say regularly that this member lives."""
        self._alive_every_s = every_s

    def next(self, timeout_s: float = 0.0) -> Message | None:
        """What came; None when nothing did within `timeout_s`. Raises PeerLost, each time, once the line is dead."""
        try:
            arrived = self._inbox.get(timeout=timeout_s) if timeout_s > 0 else self._inbox.get_nowait()
        except queue.Empty:
            return None
        if isinstance(arrived, PeerLost):
            self._inbox.put(arrived)
            raise arrived
        return arrived

    def tell(self, message: Message) -> None:
        """Say `message`. Raises PeerLost when the connection is broken."""
        try:
            self._send(message)
        except OSError as error:
            raise PeerLost(RENDEZVOUS, f"its connection broke ({error})") from error

    def farewell(self, message: Message) -> None:
        """Say a last `message`, if anyone still listens."""
        with contextlib.suppress(OSError):
            self._send(message)

    def close(self) -> None:
        """Hang up, and leave no thread behind. Idempotent."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(CLOSE_TIMEOUT_S)
        self._connection.close()

    def _send(self, message: Message) -> None:
        with self._sending:
            self._connection.sendall(framed(message))

    def _listen(self) -> None:
        reader = FrameReader()
        reason = "its connection closed"
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        sign_at_s = time.monotonic()
        try:
            while True:
                every_s = self._alive_every_s
                if poll.poll(1000 * min(every_s or RETRY_S, 1.0)):
                    data = self._connection.recv(65536)
                    if not data:
                        break
                    for message in reader.feed(data):
                        self._inbox.put(message)
                    self._wake()
                if every_s is not None and time.monotonic() >= sign_at_s:
                    sign_at_s = time.monotonic() + every_s
                    self._send(Alive(report=self.report))
        except (OSError, InvalidMessage) as error:
            reason = f"its connection broke ({error})"
        self._inbox.put(PeerLost(RENDEZVOUS, reason))
        self._wake()
