"""The meeting point of a stand-alone group's members: a thread behind one TCP port, and the members' connections.

In: connections, and what members say on them. Out: the answers that owner.py decides on; this module decides nothing
about members and rounds. A member whose connection closes is lost. Garbage ends the connection that it came on, and no
other. Anyone who reaches the port can join, and is told the transport's token, while places are free: bind it to a
trusted network, or give keys.
"""

import contextlib
import logging
import secrets
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType

from ring_allreduce.errors import InvalidInput, InvalidMessage, TransportError
from ring_allreduce.group.admission import COMPLETE, require_size
from ring_allreduce.group.control_messages import (
    FIRST_FRAME_BYTES,
    MAX_FRAME_BYTES,
    RENDEZVOUS,
    FrameReader,
    JoinMessage,
    LeavingMessage,
    PutOutMessage,
    RefusedMessage,
    WelcomeMessage,
    framed,
    keep_alive,
    shortened,
)
from ring_allreduce.group.owner import GroupOwner, Said
from ring_allreduce.rounds.deadlines import Patience
from ring_allreduce.transport.envelope import TOKEN_BYTES
from ring_allreduce.transport.message import Message
from ring_allreduce.transport.security.keys import Keys
from ring_allreduce.transport.security.waiting_room import WaitingRoom
from ring_allreduce.transport.stats import Strangers, strangers_in_words
from ring_allreduce.transport.zmq.encrypted_streams import EncryptedListener

SEND_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 10.0
JOIN_DEADLINE_S = 10.0
"""A connection that has not joined after this time is closed, since a member joins as soon as it is welcome."""

TICK_S = 1.0
"""The clock is looked at at least this often. Accepting also rests for this long after it has failed."""

SPARE_CONNECTIONS = 64
"""The number of connections beyond the group's size that may be open at once, for those who have not joined yet."""


_LOG = logging.getLogger(__name__)


class _Connection:
    def __init__(self, peer: socket.socket, join_by_s: float, address: str, proven: str | None) -> None:
        """`address`: where it comes from. `proven`: whose key opened the connection, when it is encrypted."""
        self.socket = peer
        self.number = peer.fileno()
        self.join_by_s = join_by_s
        self.address = address
        self.proven = proven
        self.reader = FrameReader(FIRST_FRAME_BYTES if proven is None else MAX_FRAME_BYTES)
        self.name: str | None = None


class Rendezvous:
    """The rendezvous of one group. `with Rendezvous(size=3) as rendezvous:` serves at `rendezvous.address`."""

    def __init__(
        self,
        size: int,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        patience: Patience = Patience(),  # noqa: B008 - frozen
        keys: Keys | None = None,
    ) -> None:
        """Listen at once (port 0 stands for any free one).

        `size` members must meet before the group begins, and it never has more. With `keys` only the members of their
        allow-list are let in, each under its own name, and what is said to them is encrypted; the list holds
        "rendezvous" itself.

        Raises InvalidInput, TransportError.
        """
        require_size(size)
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port < 65536:
            raise InvalidInput(f"a port is a whole number from 0 (any free one) to 65535, got {port!r}")
        if not isinstance(host, str) or not host:
            raise InvalidInput(f"a host is a name or an address of this machine, got {host!r}")
        self._size = size
        self._patience = patience
        self._owner = GroupOwner(size, patience, None if keys is None else shortened(keys.allowed))
        self._listener = _listen(host, port, keys)
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{shown}:{self._listener.getsockname()[1]}"
        self._token = secrets.token_bytes(TOKEN_BYTES)
        listener = self._listener
        self.strangers = listener.strangers if isinstance(listener, EncryptedListener) else Strangers()
        """Connections that were turned away, by address; a warning of this module's logger tells of them."""
        most = size + SPARE_CONNECTIONS
        self._room = WaitingRoom(most_of_address=most, most_in_all=most)
        self._connections: dict[socket.socket, _Connection] = {}
        self._named: dict[str, _Connection] = {}
        self._to_say: deque[Said] = deque()
        self._saying = False
        self._accept_again_s: float | None = None
        self._stop_reader, self._stop_writer = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._stop_reader, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="rendezvous", daemon=True)
        self._thread.start()

    def __enter__(self) -> "Rendezvous":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving. Members that still wait see their connection close. A second call has no effect."""
        with contextlib.suppress(OSError):  # nobody listens any more
            self._stop_writer.send(b"\0")
        self._thread.join(CLOSE_TIMEOUT_S)
        self._stop_writer.close()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Serve until the group has met and every member has left; return False if `timeout_s` seconds passed first.

        With None it waits for as long as the group lives: members that die or vanish are noticed, but not that nobody
        comes.
        """
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        tick_s = min(TICK_S, self._patience.alive_every_s)
        tend_at_s = time.monotonic() + tick_s
        try:
            while not (self._owner.begun and not self._named):
                for key, _ in self._selector.select(tick_s):
                    if key.fileobj is self._stop_reader:
                        return
                    if key.fileobj is self._listener:
                        self._accept()
                    elif isinstance(key.fileobj, socket.socket):
                        self._read(key.fileobj)
                now_s = time.monotonic()
                if now_s >= tend_at_s:
                    tend_at_s = now_s + tick_s
                    self._tend(now_s)
        finally:
            for connection in self._connections.values():
                connection.socket.close()
            self._selector.close()
            self._listener.close()
            self._stop_reader.close()

    def _tend(self, now_s: float) -> None:
        """Do what is due by the clock."""
        for connection in self._silent():
            if now_s >= connection.join_by_s:
                self._turn_away(connection, "it did not join")
        for address, count in self.strangers.news(now_s).items():
            _LOG.warning("the rendezvous at %s has %s", self.address, strangers_in_words(address, count))
        if self._accept_again_s is not None and now_s >= self._accept_again_s:
            self._accept_again_s = None
            self._selector.register(self._listener, selectors.EVENT_READ)
        self._say(self._owner.check(now_s))

    def _accept(self) -> None:
        now_s = time.monotonic()
        try:
            peer, who = self._listener.accept()
        except ConnectionError:
            return  # it was gone before it was taken
        except OSError:
            # Most likely no file descriptor is free. The listener stays readable: without a rest this would spin.
            self._drop_oldest_silent()
            self._selector.unregister(self._listener)
            self._accept_again_s = now_s + TICK_S
            return
        peer.setblocking(False)
        keep_alive(peer)
        proven = who if isinstance(self._listener, EncryptedListener) else None
        address = who if proven is not None else who[0]
        connection = self._connections[peer] = _Connection(peer, now_s + JOIN_DEADLINE_S, address, proven)
        self._selector.register(peer, selectors.EVENT_READ)
        away = self._room.enter(connection.number, address, lambda _: False)
        for each in [one for one in self._silent() if one.number in away]:
            self._turn_away(each, "others came that may have more to say")
        if peer not in self._connections:
            return
        self._read_closed()
        if self._owner.full:
            self._refuse(connection, COMPLETE)
        else:
            self._send(connection, WelcomeMessage(token=self._token, alive_every_s=self._patience.alive_every_s))

    def _read_closed(self) -> None:
        """Read what members have said before deciding whether a place is free, since one may just have left."""
        for key, _ in self._selector.select(0):
            if isinstance(key.fileobj, socket.socket) and key.fileobj in self._connections:
                self._read(key.fileobj)

    def _drop_oldest_silent(self) -> None:
        for connection in self._silent()[:1]:
            self._turn_away(connection, "others came that may have more to say")

    def _read(self, peer: socket.socket) -> None:
        connection = self._connections.get(peer)
        if connection is None:
            return
        try:
            data = peer.recv(65536)
            messages = connection.reader.feed(data)
        except BlockingIOError:
            return  # it was read already
        except OSError as error:
            self._drop(connection, f"its connection broke ({error})")
            return
        except InvalidMessage as error:
            self._turn_away(connection, f"it sent what is no message ({error})")
            return
        if not data:
            self._drop(connection, "it left, or its process died")
        for message in messages:
            if peer in self._connections:  # what came before may have ended it
                self._take(connection, message)

    def _take(self, connection: _Connection, message: Message) -> None:
        now_s = time.monotonic()
        if connection.name is not None:
            said = self._owner.take(connection.name, message, now_s)
        elif isinstance(message, JoinMessage):
            if connection.proven not in (None, message.name):
                self._refuse(connection, f"its key is that of {connection.proven!r}")
                return
            self._read_closed()
            reason, said = self._owner.join(message, now_s)
            if reason:
                self._refuse(connection, reason)
                return
            connection.name = message.name
            connection.reader.most_bytes = MAX_FRAME_BYTES
            self._room.leave(connection.number)
            self._named[message.name] = connection
        else:
            said = None
        if said is None:
            self._drop(connection, f"it sent {type(message).__name__} out of turn")
        else:
            self._say(said)
            if isinstance(message, LeavingMessage):  # its name is free from now on, and it has no say under it
                self._drop(connection, "it left")

    def _refuse(self, connection: _Connection, reason: str) -> None:
        self._send(connection, RefusedMessage(reason=reason))
        self._drop(connection, reason)

    def _turn_away(self, connection: _Connection, reason: str) -> None:
        if connection.name is None:
            self.strangers.came(connection.address)
        self._drop(connection, reason)

    def _drop(self, connection: _Connection, reason: str) -> None:
        if self._connections.pop(connection.socket, None) is None:
            return
        self._room.leave(connection.number)
        self._selector.unregister(connection.socket)
        connection.socket.close()
        if connection.name is not None:
            self._named.pop(connection.name, None)
            self._say(self._owner.lost(connection.name, reason, time.monotonic()))

    def _silent(self) -> list[_Connection]:
        """Return the connections that have not joined, the oldest first."""
        return [connection for connection in self._connections.values() if connection.name is None]

    def _say(self, said: list[Said]) -> None:
        """Send each message to its members, in the order in which they were decided.

        A member that cannot be reached is lost, and what follows from its loss is sent, too.
        """
        self._to_say += said
        if self._saying:
            return
        self._saying = True
        try:
            while self._to_say:
                self._say_next(*self._to_say.popleft())
        finally:
            self._saying = False

    def _say_next(self, members: Sequence[str], message: Message) -> None:
        frame = framed(message)
        for name in members:
            connection = self._named.get(name)
            if connection is not None:
                self._send_frame(connection, frame)
                if isinstance(message, PutOutMessage):
                    self._drop(connection, "it was put out")

    def _send(self, connection: _Connection, message: Message) -> None:
        self._send_frame(connection, framed(message))

    def _send_frame(self, connection: _Connection, frame: bytes) -> None:
        try:
            connection.socket.settimeout(SEND_TIMEOUT_S)
            connection.socket.sendall(frame)
            connection.socket.setblocking(False)
        except OSError as error:
            self._drop(connection, f"it takes no messages ({error})")


def _listen(host: str, port: int, keys: Keys | None) -> socket.socket | EncryptedListener:
    if keys is not None:
        keys.require_own_name(RENDEZVOUS)
        return EncryptedListener(host, port, keys)
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise TransportError(f"cannot listen on {host}:{port}: {error}") from error
