"""A byte stream inside CurveZMQ: to who uses it, an ordinary connected socket.

For the few bytes that members and their rendezvous say to each other, whose code reads and writes sockets. A thread
passes on what one end of a socket pair says; the other end is the caller's. Decides when a stream has begun and when
it has ended; encrypted_listener.py is its other side. An empty ZeroMQ message opens and ends a stream, the others are
its bytes in order.
"""

import contextlib
import math
import socket
import threading
import time

import zmq
from zmq.utils.monitor import recv_monitor_message

from ring_allreduce.errors import DeadlinePassed, InvalidInput
from ring_allreduce.transport.security.doorkeeper import Context, present_keys
from ring_allreduce.transport.security.keys import Keys
from ring_allreduce.transport.zmq.lanes import endpoint_url

OPEN_OR_END = b""
PIECE_BYTES = 64 * 1024

TAKE_S = 5.0
"""How long the user's end of a stream may take nothing before the stream ends."""

LINGER_S = 2.0
"""How long the last bytes may take to leave after a stream was closed."""

CLOSE_S = 5.0
"""How long close() waits for a thread that has nothing to do but to end."""

_EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_DISCONNECTED


class EncryptedStream(socket.socket):
    """The caller's end. close() leaves no thread behind."""

    def __init__(self, host: str, port: int, keys: Keys, peer: str, timeout_s: float) -> None:
        """Connect to the EncryptedListener of `peer` at `host`, which may start later.

        Raises InvalidInput when the allow-list lacks `peer`, or `peer` refuses this key; DeadlinePassed when no
        handshake has succeeded after `timeout_s`: nobody listens, or it is another than `peer`.
        """
        mine, self._inner = socket.socketpair()
        super().__init__(mine.family, mine.type, mine.proto, fileno=mine.detach())
        self._inner.settimeout(TAKE_S)
        self._context: Context = zmq.Context()
        self._dealer = self._context.socket(zmq.DEALER)
        self._thread = threading.Thread(target=self._pass_on, name="encrypted-stream", daemon=True)
        try:
            self._meet(host, port, keys, peer, timeout_s)
        except BaseException:
            self._context.destroy(linger=0)
            self._inner.close()
            super().close()
            raise
        self._thread.start()

    def close(self) -> None:
        """Send what was written, for at most LINGER_S, and end. Idempotent."""
        with contextlib.suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)
        super().close()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)

    def _meet(self, host: str, port: int, keys: Keys, peer: str, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        present_keys(self._dealer, keys, peer)
        for option, value in ((zmq.IPV6, int(":" in host)), (zmq.RECONNECT_IVL, 100), (zmq.TCP_KEEPALIVE, 1)):
            self._dealer.set(option, value)
        self._dealer.set(zmq.TCP_KEEPALIVE_IDLE, 30)
        self._dealer.set(zmq.TCP_KEEPALIVE_INTVL, 10)
        self._monitor = self._dealer.get_monitor_socket(_EVENTS)
        self._dealer.connect(endpoint_url(host, port))
        while (left_s := deadline_s - time.monotonic()) > 0 and self._monitor.poll(math.ceil(1000 * left_s)):
            event = recv_monitor_message(self._monitor)["event"]
            if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                raise InvalidInput(f"{peer!r} at {host}:{port} refuses the key {keys.own.public}")
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._dealer.send(OPEN_OR_END)
                return
        raise DeadlinePassed(f"an encrypted handshake with {peer!r} at {host}:{port}", timeout_s)

    def _pass_on(self) -> None:
        poller = zmq.Poller()
        for readable in (self._inner, self._dealer, self._monitor):
            poller.register(readable, zmq.POLLIN)
        alive = True
        with contextlib.closing(self._inner), contextlib.suppress(OSError, zmq.Again):
            while alive:
                ready = dict(poller.poll())
                if self._monitor in ready:  # the first event after the handshake: the connection is gone
                    alive = False
                if self._inner.fileno() in ready:
                    data = self._inner.recv(PIECE_BYTES)
                    self._dealer.send(data, flags=zmq.DONTWAIT)
                    alive = alive and bool(data)
                alive = self._take_all() and alive
        self._context.destroy(linger=math.ceil(1000 * LINGER_S))

    def _take_all(self) -> bool:
        """Hand over what has come; False when it was the end."""
        while self._dealer.poll(0):
            data = self._dealer.recv()
            if data == OPEN_OR_END:
                return False
            self._inner.sendall(data)
        return True
