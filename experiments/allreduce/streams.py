"""The baseline of shaped links: bytes over plain TCP sockets, from each member to the next, all hops at once."""

import socket
import threading
import time

PIECE_BYTES = 1 << 20
DEADLINE_S = 120.0


class Streams:
    """One connection to the next member and one from the member before, kept open between transfers."""

    def __init__(self, host: str) -> None:
        self._listener = socket.create_server((host, 0))
        self._listener.settimeout(DEADLINE_S)
        self.port: int = self._listener.getsockname()[1]
        self._piece = bytes(PIECE_BYTES)
        self._room = memoryview(bytearray(PIECE_BYTES))

    def connect(self, host: str, port: int) -> None:
        """To the member after this one; waits for the one before."""
        self._out = socket.create_connection((host, port), timeout=DEADLINE_S)
        self._in, _ = self._listener.accept()
        self._in.settimeout(DEADLINE_S)

    def transfer(self, n_bytes: int) -> tuple[float, float]:
        """Send and receive `n_bytes` at once; when that began and when all had arrived, on the monotonic clock."""
        began_s = time.monotonic()
        sender = threading.Thread(target=self._send, args=(n_bytes,))
        sender.start()
        left = n_bytes
        while left:
            got = self._in.recv_into(self._room, min(left, PIECE_BYTES))
            if not got:
                raise ConnectionError("the member before closed its stream")
            left -= got
        ended_s = time.monotonic()
        sender.join(DEADLINE_S)
        return began_s, ended_s

    def close(self) -> None:
        for one in (self._out, self._in, self._listener):
            one.close()

    def _send(self, n_bytes: int) -> None:
        view = memoryview(self._piece)
        for start in range(0, n_bytes, PIECE_BYTES):
            self._out.sendall(view[: min(PIECE_BYTES, n_bytes - start)])
