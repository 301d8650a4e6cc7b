"""Where the members of a stand-alone group meet: hands out addresses, and owns the rounds of their one ring.

A thread behind one TCP port. All decisions about rounds are the RoundOwner's, the same that a run's driver
uses: a call of average() counts as one sample, so a round opens when every member has called. A connection
that closes is a member that is lost. Anyone who reaches the port can join, and is told the transport's token, while
places are free: bind it to a trusted network.
"""

import contextlib
import secrets
import selectors
import socket
import threading
import time
from types import TracebackType

from ring_allreduce.admission import why_not
from ring_allreduce.control import (
    Called,
    Committed,
    Failed,
    Finished,
    FrameReader,
    Join,
    MemberAddress,
    Opened,
    Refused,
    Roster,
    Welcome,
    keep_alive,
    send_message,
)
from ring_allreduce.errors import InvalidInput, InvalidMessage, TransportError
from ring_allreduce.round_events import (
    CommitRound,
    FailRun,
    MemberFinished,
    MemberLost,
    OpenRound,
    OwnerEvent,
    SamplesReported,
)
from ring_allreduce.round_owner import RoundOwner
from ring_allreduce.transport.envelope import TOKEN_BYTES
from ring_allreduce.transport.message import Message

RING = "group"
SEND_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 10.0
JOIN_DEADLINE_S = 10.0
"""A connection that has not joined by then is closed: a member joins as soon as it is welcome."""

TICK_S = 1.0
"""How often the clock is looked at when nothing happens; also how long accepting rests when it failed."""

SPARE_CONNECTIONS = 64
"""Connections beyond the group's size that may be open at once, for those who have not said who they are."""


class _Connection:
    def __init__(self, peer: socket.socket, join_by_s: float) -> None:
        self.socket = peer
        self.join_by_s = join_by_s
        self.reader = FrameReader()
        self.name: str | None = None
        self.address: MemberAddress | None = None


class Rendezvous:
    """`with Rendezvous(size=3) as rendezvous:` serves at `rendezvous.address` until the block ends."""

    def __init__(self, size: int, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listens at once (port 0: any free one). Raises InvalidInput, TransportError."""
        if size < 1:
            raise InvalidInput(f"a group has at least one member, got size {size}")
        self._size = size
        try:
            self._listener = socket.create_server((host, port))
        except OSError as error:
            raise TransportError(f"cannot listen on {host}:{port}: {error}") from error
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._connections: dict[socket.socket, _Connection] = {}
        self._owner: RoundOwner | None = None
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
        """Stop serving; members that still wait see their connection close. Idempotent."""
        with contextlib.suppress(OSError):  # nobody listens any more
            self._stop_writer.send(b"\0")
        self._thread.join(CLOSE_TIMEOUT_S)
        self._stop_writer.close()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Serve until the group has met and every member has left; False when `timeout_s` seconds passed first.

        None waits for as long as the group lives: members that die or vanish are noticed, but not that nobody comes.
        """
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        try:
            while not (self._owner and not self._members()):
                for key, _ in self._selector.select(TICK_S):
                    if key.fileobj is self._stop_reader:
                        return
                    if key.fileobj is self._listener:
                        self._accept()
                    elif isinstance(key.fileobj, socket.socket):
                        self._read(key.fileobj)
                self._tend(time.monotonic())
        finally:
            for connection in self._connections.values():
                connection.socket.close()
            self._selector.close()
            self._listener.close()
            self._stop_reader.close()

    def _tend(self, now_s: float) -> None:
        """What is due by the clock."""
        for connection in self._silent():
            if now_s >= connection.join_by_s:
                self._drop(connection, "it did not join")
        if self._accept_again_s is not None and now_s >= self._accept_again_s:
            self._accept_again_s = None
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _accept(self) -> None:
        now_s = time.monotonic()
        try:
            peer, _ = self._listener.accept()
        except ConnectionError:
            return  # it was gone before it was taken
        except OSError:
            # Most likely no file descriptor is free. The listener stays readable: without a rest this would spin.
            self._drop_oldest_silent()
            self._selector.unregister(self._listener)
            self._accept_again_s = now_s + TICK_S
            return
        if len(self._connections) >= self._size + SPARE_CONNECTIONS:
            self._drop_oldest_silent()
        peer.settimeout(SEND_TIMEOUT_S)
        keep_alive(peer)
        connection = self._connections[peer] = _Connection(peer, now_s + JOIN_DEADLINE_S)
        self._selector.register(peer, selectors.EVENT_READ)
        if self._owner:
            self._refuse(connection, "the group is complete")
        else:
            self._send(connection, Welcome(token=self._token))

    def _drop_oldest_silent(self) -> None:
        for connection in self._silent()[:1]:
            self._drop(connection, "others came that may have more to say")

    def _read(self, peer: socket.socket) -> None:
        connection = self._connections.get(peer)
        if connection is None:
            return
        try:
            data = peer.recv(65536)
            messages = connection.reader.feed(data)
        except OSError as error:
            self._drop(connection, f"its connection broke ({error})")
            return
        except InvalidMessage as error:
            self._drop(connection, f"it sent what is no message ({error})")
            return
        if not data:
            self._drop(connection, "it left, or its process died")
        for message in messages:
            if peer in self._connections:  # what came before may have ended it
                self._take(connection, message)

    def _take(self, connection: _Connection, message: Message) -> None:
        match message:
            case Join() if connection.name is None:
                self._join(connection, message)
            case Called() if connection.name and self._owner:
                self._decide(SamplesReported(connection.name, message.calls))
            case Finished() if connection.name and self._owner:
                self._decide(MemberFinished(message.round, connection.name, RING))
            case _:
                self._drop(connection, f"it sent {type(message).__name__} out of turn")

    def _join(self, connection: _Connection, join: Join) -> None:
        members = {member.name for member in self._members() if member.name}
        reason = why_not(join, self._size, members, self._owner is not None)
        if reason:
            self._refuse(connection, reason)
            return
        connection.name, connection.address = join.name, join.address
        addresses = {x.name: x.address for x in self._members() if x.name and x.address}
        if len(addresses) == self._size:
            names = sorted(addresses)
            self._owner = RoundOwner({RING: names}, average_every=self._size)
            self._broadcast(Roster(epoch=self._owner.epoch, members={name: addresses[name] for name in names}))

    def _refuse(self, connection: _Connection, reason: str) -> None:
        self._send(connection, Refused(reason=reason))
        self._drop(connection, reason)

    def _drop(self, connection: _Connection, reason: str) -> None:
        if self._connections.pop(connection.socket, None) is None:
            return
        self._selector.unregister(connection.socket)
        connection.socket.close()
        if connection.name and self._owner:
            self._decide(MemberLost(connection.name, reason))

    def _decide(self, event: OwnerEvent) -> None:
        assert self._owner is not None
        for instruction in self._owner.handle(event, time.monotonic()):
            match instruction:
                case OpenRound():
                    self._broadcast(Opened(round=instruction.round))
                case CommitRound():
                    self._broadcast(Committed(round=instruction.round))
                case FailRun():
                    self._broadcast(_failed(event, instruction))

    def _members(self) -> list[_Connection]:
        return [connection for connection in self._connections.values() if connection.name]

    def _silent(self) -> list[_Connection]:
        """Those who have not said who they are, the oldest first."""
        return [connection for connection in self._connections.values() if not connection.name]

    def _broadcast(self, message: Message) -> None:
        for connection in self._members():
            self._send(connection, message)

    def _send(self, connection: _Connection, message: Message) -> None:
        try:
            send_message(connection.socket, message)
        except OSError as error:
            self._drop(connection, f"it takes no messages ({error})")


def _failed(event: OwnerEvent, instruction: FailRun) -> Failed:
    match event:
        case MemberLost(member=member, reason=reason):
            return Failed(member=member, reason=reason)
        case MemberFinished(member=member):
            return Failed(member=member, reason=instruction.reason)
        case _:
            return Failed(member="rendezvous", reason=instruction.reason)
