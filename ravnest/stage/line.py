"""The line between a stage's process and the actor that has started it: whole messages of bytes, in both directions.

In: one end of a pair of sockets. Out: messages as they were sent. The module needs neither torch nor the rest of
ravnest, since Ray's workers import it.
"""

import socket
import struct
import threading

GET_READY = b"get ready: "
"""What stands before an order that is not to be carried out yet: only what it needs is to be loaded."""
IS_READY = b"ready"
"""The answer to that."""

_LENGTH = struct.Struct(">Q")


class Line:
    """One end. Both methods raise EOFError or OSError once the other end is gone."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._sends = threading.Lock()

    def send(self, message: bytes) -> None:
        """Send one message."""
        with self._sends:
            self._socket.sendall(_LENGTH.pack(len(message)) + message)

    def receive(self) -> bytes:
        """Wait for the next message. The other end's process, or its end, is what bounds the wait."""
        (length,) = _LENGTH.unpack(self._bytes(_LENGTH.size))
        return self._bytes(length)

    def _bytes(self, count: int) -> bytes:
        parts, left = [], count
        while left:
            part = self._socket.recv(min(left, 1 << 20))
            if not part:
                raise EOFError("the other end of the line is gone")
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
