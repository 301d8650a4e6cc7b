"""Byte streams inside CurveZMQ, for the few bytes that members and their rendezvous say to each other.

To who uses them, `EncryptedStream` is an ordinary connected socket and `EncryptedListener` a listening one, whose
accept() also tells which member has come. Behind each stands a thread, which passes on what one end of a socket pair
says; the user holds the other end. An empty ZeroMQ message opens and ends a stream, the others are its bytes in order.

Only members of the allow-list reach accept(); everybody else ends in the handshake. A process that dies takes its TCP
connection with it, which ends its stream at once: ZeroMQ tells which connection went, and which one a message came
from.
"""

import contextlib
import math
import queue
import socket
import threading
import time
from collections.abc import Container

import zmq
from zmq.utils.monitor import recv_monitor_message

from ring_allreduce.errors import DeadlinePassed, InvalidInput, TransportError
from ring_allreduce.transport.security.doorkeeper import Context, Doorkeeper, guard, present_keys, proven_name
from ring_allreduce.transport.security.keys import Keys
from ring_allreduce.transport.security.waiting_room import Lobby, monitor_of
from ring_allreduce.transport.zmq.lanes import endpoint_url

OPEN_OR_END = b""
PIECE_BYTES = 64 * 1024

TAKE_S = 5.0
"""The stream ends if its user reads nothing for this long of what has come before."""

LINGER_S = 2.0
"""The last bytes may take this long to leave after a stream was closed."""

CLOSE_S = 5.0
"""The time for which close() waits for a thread that has nothing to do but to end."""

MOST_PIECES = 8192
"""Pieces that wait in ZeroMQ for one end of a stream, half a GiB; a stream for which more wait ends."""

HEARD_AT_ONCE = 64
"""Messages that are taken before others get their turn: a member that never stops talking is not all there is."""

_LARGEST_MESSAGE_BYTES = 2 * PIECE_BYTES
_EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_DISCONNECTED


class EncryptedStream(socket.socket):
    """The connecting end of a stream, as a socket. close() leaves no thread behind."""

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
        """Send what was written, for at most LINGER_S, and end. A second call has no effect."""
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
        self._dealer.set(zmq.MAXMSGSIZE, _LARGEST_MESSAGE_BYTES)
        self._dealer.set(zmq.SNDHWM, MOST_PIECES)
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
                gone = self._monitor in ready  # the first event after the handshake: what came before is all there is
                alive = not gone
                if self._inner.fileno() in ready:
                    data = self._inner.recv(PIECE_BYTES)
                    self._dealer.send(data, flags=zmq.DONTWAIT)
                    alive = alive and bool(data)
                alive = self._take(everything=gone) and alive
        self._context.destroy(linger=math.ceil(1000 * LINGER_S))

    def _take(self, *, everything: bool) -> bool:
        """Pass on what has come, not too much at once unless it is to be all; False when the stream has ended."""
        taken = 0
        while (everything or taken < HEARD_AT_ONCE) and self._dealer.poll(0):
            taken += 1
            data = self._dealer.recv()
            if data == OPEN_OR_END or not _take(self._inner, data):
                return False
        return True


class EncryptedListener:
    """Accepts the streams of members of an allow-list. close() leaves no thread behind."""

    def __init__(self, host: str, port: int, keys: Keys) -> None:
        """Listen at `port` (0: any free one). `keys`: this end's, with the allow-list. Raises TransportError."""
        self._context: Context = zmq.Context()
        self._doorkeeper = Doorkeeper(self._context, b"", keys)
        self.strangers = self._doorkeeper.strangers
        self._router = self._context.socket(zmq.ROUTER)
        guard(self._router, keys)
        self._lobby = Lobby(self.strangers, with_keys=True)
        # Before bind(), and not in close(): a connection that ends by itself lingers as its socket was to linger then.
        # One that ends just before close(), with words for it left over, would hold the context forever.
        self._router.set(zmq.LINGER, math.ceil(1000 * LINGER_S))
        self._router.set(zmq.ROUTER_MANDATORY, 1)  # an error, not silence, when a stream takes nothing or is gone
        self._router.set(zmq.MAXMSGSIZE, _LARGEST_MESSAGE_BYTES)
        self._router.set(zmq.SNDHWM, MOST_PIECES)
        self._router.set(zmq.IPV6, int(":" in host))
        self._router.set(zmq.TCP_KEEPALIVE, 1)
        self._router.set(zmq.TCP_KEEPALIVE_IDLE, 30)
        self._router.set(zmq.TCP_KEEPALIVE_INTVL, 10)
        self._monitor = monitor_of(self._router)
        try:
            self._router.bind(endpoint_url(host, port or "*"))
        except zmq.ZMQError as error:
            self._doorkeeper.stop()
            self._context.destroy(linger=0)
            raise TransportError(f"cannot listen on {host}:{port}: {error}") from error
        self._address = host, int(self._router.get_string(zmq.LAST_ENDPOINT).rstrip("\0").rpartition(":")[2])
        self._doorkeeper.start()
        self._streams: dict[bytes, socket.socket] = {}  # identity of the connection → our end of its socket pair
        self._identities: dict[int, bytes] = {}  # the connection's descriptor → its identity
        self._lost: dict[bytes, float] = {}  # identity of a lost connection → until when its last words are waited for
        self._poller = zmq.Poller()
        self._arrived: queue.SimpleQueue[tuple[socket.socket, str]] = queue.SimpleQueue()
        self._knock_reader, self._knock_writer = socket.socketpair()
        self._stop_reader, self._stop_writer = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="encrypted-listener", daemon=True)
        self._thread.start()

    def getsockname(self) -> tuple[str, int]:
        """Return the host and the port at which it listens."""
        return self._address

    def fileno(self) -> int:
        """Return a descriptor that is readable when accept() would not wait."""
        return self._knock_reader.fileno()

    def accept(self) -> tuple[socket.socket, str]:
        """Wait for a new stream; returns it and the member whose key opened it. Raises OSError after the end."""
        if self._knock_reader.recv(1):
            with contextlib.suppress(queue.Empty):
                return self._arrived.get_nowait()
        raise OSError("the listener has ended")

    def close(self) -> None:
        """Send what was written, for at most LINGER_S, end all streams, and leave no thread behind.

        A second call has no effect.
        """
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
                self._lobby.give_back(time.monotonic())
        finally:  # however it ends, nobody waits on a stream that is served no more
            # Who is told of the end is not accepted after it: first go the streams that nobody has accepted.
            with contextlib.suppress(queue.Empty):  # accept() may take the last one at any moment
                while True:
                    self._arrived.get_nowait()[0].close()
            self._knock_writer.close()
            self._say_last()
            self._stop_reader.close()
            self._see_lost()  # disabling waits for ZeroMQ, which waits where it has too much news to tell
            self._router.disable_monitor()
            self._router.close()
            self._doorkeeper.stop()
            self._context.destroy(linger=0)  # waits until the last bytes have left, for at most the router's linger

    def _say_last(self) -> None:
        """Pass on what the users of all streams have written before the end, and end them."""
        for identity, stream in list(self._streams.items()):
            stream.setblocking(False)  # once nothing is left there, its end is said
            for _ in range(MOST_PIECES):
                if identity not in self._streams:
                    break
                self._say(identity, stream)
            self._end(identity)

    def _turn(self, ready: Container[object]) -> None:
        for identity, stream in list(self._streams.items()):
            if stream.fileno() in ready:
                self._say(identity, stream)
        # What a connection said before it went is still taken: first see who went, then read, then end.
        self._see_lost()
        for identity in self._hear():
            self._end(identity)
        if self._lost:
            all_heard, now_s = not self._router.poll(0), time.monotonic()
            for identity in [one for one, until_s in self._lost.items() if all_heard or now_s > until_s]:
                del self._lost[identity]
                self._end(identity)

    def _see_lost(self) -> None:
        """Take note of the connections that were lost."""
        while self._monitor.poll(0):
            news = recv_monitor_message(self._monitor)
            self._lobby.take(news, time.monotonic())
            came = news["event"] == zmq.EVENT_ACCEPTED
            identity = None if came else self._identities.pop(news["value"], None)
            if identity is not None:
                self._lost[identity] = time.monotonic() + TAKE_S

    def _hear(self) -> list[bytes]:
        """Pass on what has come, not too much at once; returns the identities of the streams that end."""
        ended = []
        for _ in range(HEARD_AT_ONCE):
            if not self._router.poll(0):
                break
            identity_frame, frame = self._router.recv_multipart(copy=False)[:2]
            identity, data = identity_frame.bytes, frame.bytes
            stream = self._streams.get(identity)
            if stream is None:
                if data == OPEN_OR_END:
                    # The system may give the descriptor of one who went to the next: hear of the former first.
                    self._see_lost()
                    self._identities[frame.get(zmq.SRCFD)] = identity
                    self._begin(identity, proven_name(frame))
            elif data == OPEN_OR_END or not _take(stream, data):
                ended.append(identity)
        return ended

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
    """Pass `data` on to the user of the stream; False where it took nothing for TAKE_S. One that has closed its end
    takes nothing more, and its last words are still to be read: they and its end are passed on in their turn."""
    try:
        stream.sendall(data)
    except TimeoutError:
        return False
    except OSError:
        pass
    return True
