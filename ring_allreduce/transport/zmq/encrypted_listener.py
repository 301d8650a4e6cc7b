"""Where encrypted streams arrive: to who uses it, a listening socket whose accept() also tells who has come.

Only members of the allow-list reach accept(); everybody else ends at the handshake. One thread passes on the bytes of
all streams. A process that dies takes its TCP connection with it, which ends its stream at once: ZeroMQ says which
connection went, and which one a message came from.
"""

import contextlib
import queue
import socket
import threading
from collections.abc import Container

import zmq
from zmq.utils.monitor import recv_monitor_message

from ring_allreduce.errors import TransportError
from ring_allreduce.transport.security.doorkeeper import Context, Doorkeeper, guard, proven_name
from ring_allreduce.transport.security.keys import Keys
from ring_allreduce.transport.zmq.encrypted_streams import CLOSE_S, OPEN_OR_END, PIECE_BYTES, TAKE_S
from ring_allreduce.transport.zmq.lanes import endpoint_url

_LARGEST_MESSAGE_BYTES = 2 * PIECE_BYTES


class EncryptedListener:
    """`keys`: of this end; who connects has to be in their allow-list."""

    def __init__(self, host: str, port: int, keys: Keys) -> None:
        """Listens at once (port 0: any free one). Raises TransportError."""
        self._context: Context = zmq.Context()
        self._doorkeeper = Doorkeeper(self._context, b"", keys)
        self._router = self._context.socket(zmq.ROUTER)
        guard(self._router, keys)
        self._router.set(zmq.ROUTER_MANDATORY, 1)  # an error, not silence, when a stream takes nothing or is gone
        self._router.set(zmq.MAXMSGSIZE, _LARGEST_MESSAGE_BYTES)
        self._router.set(zmq.IPV6, int(":" in host))
        self._router.set(zmq.TCP_KEEPALIVE, 1)
        self._router.set(zmq.TCP_KEEPALIVE_IDLE, 30)
        self._router.set(zmq.TCP_KEEPALIVE_INTVL, 10)
        try:
            self._router.bind(endpoint_url(host, port or "*"))
        except zmq.ZMQError as error:
            self._doorkeeper.stop()
            self._context.destroy(linger=0)
            raise TransportError(f"cannot listen on {host}:{port}: {error}") from error
        self._address = host, int(self._router.get_string(zmq.LAST_ENDPOINT).rstrip("\0").rpartition(":")[2])
        self._monitor = self._router.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._streams: dict[bytes, socket.socket] = {}  # identity of the connection → our end of its socket pair
        self._identities: dict[int, bytes] = {}  # the connection's descriptor → its identity
        self._poller = zmq.Poller()
        self._arrived: queue.SimpleQueue[tuple[socket.socket, str]] = queue.SimpleQueue()
        self._knock_reader, self._knock_writer = socket.socketpair()
        self._stop_reader, self._stop_writer = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="encrypted-listener", daemon=True)
        self._thread.start()

    def getsockname(self) -> tuple[str, int]:
        """Host and port."""
        return self._address

    def fileno(self) -> int:
        """Readable when accept() has somebody."""
        return self._knock_reader.fileno()

    def accept(self) -> tuple[socket.socket, str]:
        """A new stream, and the member whose key opened it. Waits; OSError when nobody will come any more."""
        if self._knock_reader.recv(1):
            with contextlib.suppress(queue.Empty):
                return self._arrived.get_nowait()
        raise OSError("the listener has ended")

    def close(self) -> None:
        """End all streams, and leave no thread behind. Idempotent."""
        self._stop_writer.close()
        self._thread.join(CLOSE_S)
        self._knock_reader.close()

    def _serve(self) -> None:
        for readable in (self._stop_reader, self._router, self._monitor):
            self._poller.register(readable, zmq.POLLIN)
        try:
            while self._doorkeeper.failure is None:
                ready = dict(self._poller.poll(1000))
                if self._stop_reader.fileno() in ready:
                    break
                self._turn(ready)
        finally:  # however it ends, nobody waits on a stream that is served no more
            for identity in list(self._streams):
                self._end(identity)
            with contextlib.suppress(queue.Empty):  # accept() may take the last one at any moment
                while True:
                    self._arrived.get_nowait()[0].close()
            self._knock_writer.close()
            self._stop_reader.close()
            self._doorkeeper.stop()
            self._context.destroy(linger=0)

    def _turn(self, ready: Container[object]) -> None:
        for identity, stream in list(self._streams.items()):
            if stream.fileno() in ready:
                self._say(identity, stream)
        # What a connection said before it went is still taken: first see who went, then read, then end.
        gone = self._gone()
        gone += self._hear_all()
        for identity in gone:
            self._end(identity)

    def _gone(self) -> list[bytes]:
        """The identities of the connections that went."""
        gone = []
        while self._monitor.poll(0):
            identity = self._identities.pop(recv_monitor_message(self._monitor)["value"], None)
            if identity is not None:
                gone.append(identity)
        return gone

    def _hear_all(self) -> list[bytes]:
        """Take what has come; the streams that end."""
        gone = []
        while self._router.poll(0):
            identity_frame, frame = self._router.recv_multipart(copy=False)[:2]
            identity, data = identity_frame.bytes, frame.bytes
            stream = self._streams.get(identity)
            if stream is None:
                if data == OPEN_OR_END:
                    # The system may give the descriptor of one who went to the next: hear of the former first.
                    gone += self._gone()
                    self._identities[frame.get(zmq.SRCFD)] = identity
                    self._begin(identity, proven_name(frame))
            elif data == OPEN_OR_END or not _take(stream, data):
                gone.append(identity)
        return gone

    def _begin(self, identity: bytes, name: str) -> None:
        try:
            theirs, mine = socket.socketpair()
        except OSError:  # no descriptor is free: it may try again
            self._refuse(identity)
            return
        mine.settimeout(TAKE_S)
        self._streams[identity] = mine
        self._poller.register(mine, zmq.POLLIN)
        self._arrived.put((theirs, name))
        self._knock_writer.send(b"\0")

    def _say(self, identity: bytes, stream: socket.socket) -> None:
        """Pass on what the user of a stream wrote, or that it has ended."""
        try:
            data = stream.recv(PIECE_BYTES)
            if data:
                self._router.send_multipart([identity, data], flags=zmq.DONTWAIT)
        except (OSError, zmq.ZMQError):
            data = b""  # the other end is gone, or takes nothing more
        if not data:
            self._end(identity)

    def _end(self, identity: bytes) -> None:
        stream = self._streams.pop(identity, None)
        if stream is None:
            return
        self._poller.unregister(stream)
        stream.close()
        self._refuse(identity)

    def _refuse(self, identity: bytes) -> None:
        """Tell the other side that its stream has ended."""
        with contextlib.suppress(zmq.ZMQError):  # it is gone
            self._router.send_multipart([identity, OPEN_OR_END], flags=zmq.DONTWAIT)


def _take(stream: socket.socket, data: bytes) -> bool:
    """Whether the user of the stream took `data`."""
    try:
        stream.sendall(data)
    except OSError:
        return False
    return True
