"""The endpoint of members of a grid beyond this machine: encrypted, over lines that either side may open.

A `ZmqEndpoint` connects both ways, in clear or by an allow-list that all know before. Here members meet through the
hash table, and some can only open connections outwards. So each opens a line (ring_allreduce's `Lines`) to whom it has
to say something, or is spoken to over the line that the other has opened:

    who listens      has a key of its own (CurveZMQ), which its record in the table says and signs
    who opens        shows that it has the members' token, by a key that follows from it, then says who it is: its name
                     ends with the beginning of its public key (Ed25519), which signs the listener's name and key. So a
                     member that announces another's key as its own cannot have it take what was meant for the first
    who listens      says that it believes so, once it knows a member of that name; before, it takes nothing large, and
                     so nothing else is sent

Nobody is heard under a name that is not its own, and who has no token not at all. At most WINDOW_BYTES are on their way
on a line: who receives says what it has taken. Members may lie: with one key one can make up any number of names, and
open any number of lines. So lines of who is not known here are few and take little, and what waits for all members
together is bounded. In and out: as any `Endpoint`. All methods but wake() belong to one thread; lines are opened in
others.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from ravnest.dht import KeyIdentity
from ravnest.errors import InvalidInput
from ravnest.experts.grid import is_of
from ravnest.experts.messages import CODEC_KINDS
from ring_allreduce import PeerStalled, UnknownPeer
from ring_allreduce.transport import (
    Codec,
    Count,
    Delivery,
    KeyPair,
    Keys,
    Lane,
    LineClosed,
    LineOpened,
    Lines,
    LineSaid,
    Message,
    Name,
    PeerAddress,
    TransportStats,
    at_most,
)

MOST_MESSAGE_BYTES = 192 << 20
WINDOW_BYTES = 16 << 20
"""So much is on its way on one line, or one message alone."""

MOST_QUEUED_BYTES = 256 << 20
"""So much may wait for one member; then it takes nothing more (PeerStalled)."""

MOST_QUEUED_IN_ALL_BYTES = 1 << 30
"""So much may wait for all members; then the one for which most waits takes nothing more, and is sent nothing of it."""

DIAL_S = 10.0
AGAIN_S = 5.0
"""After a line could not be opened, it is tried again."""

INTRODUCE_S = 10.0
"""Who has opened a line has to say who it is within this time, and is answered within it."""

MOST_UNKNOWN, MOST_OF_ONE = 64, 4
"""Lines of those who have not said who they are or are not known here, and lines of one member."""

MEMBER = "member"
"""The name of the members' common key in an allow-list."""

_OVERHEAD_BYTES = 512


class Introduced(Message, frozen=True, kw_only=True, tag="introduced"):
    """Who has opened a line: the first message on it. signature: of the listener's name and key."""

    name: Name
    public_key: Annotated[bytes, at_most(64)]
    signature: Annotated[bytes, at_most(128)]


class Believed(Message, frozen=True, kw_only=True, tag="believed"):
    """The answer to Introduced: from now on messages of any size are taken on this line."""


class Taken(Message, frozen=True, kw_only=True, tag="taken"):
    """So many bytes of what was sent on this line have been taken."""

    n_bytes: Count


@dataclass(frozen=True)
class LineAddress(PeerAddress):
    """Where a member listens, and the key of its listener; ports are 0 for one that only opens lines outwards."""

    key: str = ""


@dataclass
class _Peer:
    address: LineAddress
    lines: list[int] = field(default_factory=list)
    """Open lines, of which the first is used to send."""
    queued: deque[tuple[Message, tuple[Tensor, ...], int]] = field(default_factory=deque)
    queued_bytes: int = 0
    dialling: Future[int] | None = None
    not_before_s: float = float("-inf")

    @property
    def listens(self) -> bool:
        return self.address.pipeline_port > 0

    def drop_queued(self) -> None:
        self.queued.clear()
        self.queued_bytes = 0


class LineEndpoint:
    """An `Endpoint` over lines."""

    def __init__(
        self, name: str, identity: KeyIdentity, token: bytes, host: str, *, outwards_only: bool = False
    ) -> None:
        """Listen at a free port of `host`, unless `outwards_only`. Raises TransportError."""
        self.name, self.epoch, self.stats = name, 0, TransportStats()
        self._identity, self._outwards_only = identity, outwards_only
        self._members_key = members_key(token)
        own = KeyPair.make()
        listen = None if outwards_only else (host, 0, Keys(own, {MEMBER: self._members_key.public}))
        self._lines = Lines(
            Codec((*CODEC_KINDS, Introduced, Believed, Taken)),
            token,
            listen=listen,
            max_message_bytes=MOST_MESSAGE_BYTES,
            most_unread_bytes=2 * MOST_MESSAGE_BYTES,
            most_queued_bytes=2 * MOST_MESSAGE_BYTES,
            most_bytes=8 * MOST_MESSAGE_BYTES,
        )
        port = self._lines.port or 0
        self._own_key = "" if outwards_only else own.public
        self.address: PeerAddress = LineAddress(host, port, port, self._own_key)
        self._peers: dict[str, _Peer] = {}
        self._names: dict[int, str] = {}
        """By line: who is at its other end."""
        self._unknown: dict[int, float] = {}
        """Lines of those who have not said who they are, or are not known here, and until when they may be, the oldest
        first."""
        self._said: dict[int, str] = {}
        """By line of these: who is at its other end, as it has proved."""
        self._unbelieved: dict[int, float] = {}
        """Lines opened here whose other end has not answered who this is, and until when it may."""
        self._on_their_way: dict[int, int] = {}
        self._dialled: deque[tuple[str, Future[int]]] = deque()
        self._pool = ThreadPoolExecutor(4, "dial")
        self._closed = False

    def connect(self, peers: Mapping[str, PeerAddress]) -> None:
        """Make `peers` known; see `Endpoint.connect`. Raises InvalidInput for what cannot be an address."""
        for peer, address in peers.items():
            if not isinstance(address, LineAddress) or (address.pipeline_port and not address.key):
                raise InvalidInput(f"peer {peer!r} does not encrypt: do all members have the token file?")
            if address.pipeline_port:
                address.require_usable(peer)
        for peer, address in peers.items():
            assert isinstance(address, LineAddress)
            if peer != self.name and (peer not in self._peers or self._peers[peer].address != address):
                lines = [line for line, name in self._names.items() if name == peer and line not in self._unbelieved]
                self._peers[peer] = _Peer(address, lines)
                for line in [line for line, name in self._said.items() if name == peer]:
                    self._believe(line, peer)
                self._tend(peer, time.monotonic())

    def disconnect(self, peers: Iterable[str]) -> None:
        """Forget `peers`, what is queued for them, and their lines."""
        for peer in peers:
            if self._peers.pop(peer, None) is not None:
                for line in [line for line, name in self._names.items() if name == peer]:
                    del self._names[line]  # who comes back at once gets another line
                    self._unbelieved.pop(line, None)
                    self._lines.hang_up(line, "it is no member any more")

    def empty(self, elements: int, dtype: torch.dtype) -> Tensor:
        """A vector with undefined content."""
        return torch.empty(elements, dtype=dtype)

    def send(self, peer: str, lane: Lane, message: Message, tensors: Sequence[Tensor] = ()) -> None:
        """Queue a message; see `Endpoint.send`. Both lanes are one line. Raises PeerStalled also for a member that only
        opens lines outwards and has opened none."""
        known = self._peers.get(peer)
        if known is None:
            raise UnknownPeer(peer)
        size = sum(one.nbytes for one in tensors) + _OVERHEAD_BYTES
        reachable = known.lines or (known.listens and known.not_before_s <= time.monotonic())
        if not reachable or known.queued_bytes + size > MOST_QUEUED_BYTES or size > MOST_MESSAGE_BYTES:
            raise PeerStalled(peer, lane.value, len(known.queued))
        if sum(one.queued_bytes for one in self._peers.values()) + size > MOST_QUEUED_IN_ALL_BYTES:
            most = max(self._peers.values(), key=lambda one: one.queued_bytes)
            most.drop_queued()
            if most is known:
                raise PeerStalled(peer, lane.value, 0)
        known.queued.append((message, tuple(tensors), size))
        known.queued_bytes += size
        self.stats.sent[peer, lane].add(size)
        self._tend(peer, time.monotonic())

    def queued(self, peer: str, lane: Lane) -> int:
        """How many messages wait for a line to `peer`; both lanes are one line."""
        return len(self._peers[peer].queued) if peer in self._peers else 0

    def poll(self, timeout_s: float) -> list[Delivery]:
        """Send what may leave, and return what arrived; wait up to `timeout_s` when nothing has."""
        now_s = time.monotonic()
        while self._dialled:
            self._has_dialled(*self._dialled.popleft(), now_s)
        for line in [line for line, until_s in self._unknown.items() if now_s > until_s]:
            self._forget_unknown(line, "it did not say who it is, or is no member that is known here")
        for line in [line for line, until_s in self._unbelieved.items() if now_s > until_s]:
            self._lines.hang_up(line, "it did not answer who this is")
        for peer in self._peers:
            self._tend(peer, now_s)
        deliveries: list[Delivery] = []
        for event in self._lines.take(timeout_s):
            match event:
                case LineOpened():
                    if len(self._unknown) >= MOST_UNKNOWN:  # the oldest gives way: silence keeps nobody out
                        self._forget_unknown(next(iter(self._unknown)), "too many wait to say who they are")
                    self._unknown[event.line] = time.monotonic() + INTRODUCE_S
                case LineClosed():
                    self._ended(event.line)
                case LineSaid(line, message, tensors) if line in self._unknown:
                    self._introduced(line, message)
                case LineSaid(line, Believed(), _):
                    self._believed(line)
                case LineSaid(line, Taken() as message, _):
                    left = self._on_their_way.get(line, 0) - message.n_bytes
                    self._on_their_way[line] = max(0, left)
                case LineSaid(line, message, tensors):
                    size = sum(one.nbytes for one in tensors) + _OVERHEAD_BYTES
                    self._lines.send(line, Taken(n_bytes=size))
                    sender = self._names.get(line, "")
                    if sender in self._peers:
                        self.stats.received[sender, Lane.PIPELINE].add(size)
                        deliveries.append(Delivery(sender, self.epoch, message, tensors))
        return deliveries

    def wake(self) -> None:
        """Make poll() return early, from any thread."""
        self._lines.wake()

    def close(self) -> None:
        """Send what is on its way, and end all lines. A second call has no effect."""
        if not self._closed:
            self._closed = True
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._lines.close()

    def _tend(self, name: str, now_s: float) -> None:
        """Send what may leave to a member; open a line where there is none, and one is needed."""
        peer = self._peers[name]
        if peer.lines:
            line = peer.lines[0]
            while peer.queued:
                message, tensors, size = peer.queued[0]
                there = self._on_their_way.get(line, 0)
                if there and there + size > WINDOW_BYTES:
                    break
                peer.queued.popleft()
                peer.queued_bytes -= size
                self._on_their_way[line] = there + size
                self._lines.send(line, message, tensors)
            return
        wanted = peer.listens and (peer.queued or self._outwards_only)
        if wanted and peer.dialling is None and now_s >= peer.not_before_s and not self._closed:
            peer.dialling = self._pool.submit(self._dial, name, peer.address)
            peer.dialling.add_done_callback(lambda future: self._dial_ended(name, future))

    def _dial(self, name: str, address: LineAddress) -> int:
        keys = Keys(self._members_key, {name: address.key})
        return self._lines.dial(address.host, address.pipeline_port, keys, name, DIAL_S)

    def _dial_ended(self, name: str, future: Future[int]) -> None:
        self._dialled.append((name, future))
        self._lines.wake()

    def _has_dialled(self, name: str, future: Future[int], now_s: float) -> None:
        peer = self._peers.get(name)
        is_current = peer is not None and peer.dialling is future
        if future.cancelled() or future.exception() is not None:
            if peer is not None and is_current:
                self._nobody_there(peer, now_s)
        elif peer is None or not is_current:
            self._lines.hang_up(future.result(), "it is no member any more")
        else:
            line = future.result()
            signature = self._identity.sign(_signed(name, peer.address.key))
            said = Introduced(name=self.name, public_key=self._identity.public_key, signature=signature)
            self._names[line], self._unbelieved[line] = name, now_s + INTRODUCE_S
            self._lines.send(line, said)  # the other end says nothing before

    def _believed(self, line: int) -> None:
        if self._unbelieved.pop(line, None) is not None and (peer := self._peers.get(self._names[line])) is not None:
            peer.dialling = None
            peer.lines.append(line)

    def _nobody_there(self, peer: _Peer, now_s: float) -> None:
        peer.dialling, peer.not_before_s = None, now_s + AGAIN_S
        peer.drop_queued()  # who has asked hears no answer in time

    def _introduced(self, line: int, message: Message) -> None:
        if not isinstance(message, Introduced) or line in self._said or not self._is_true(message):
            self._forget_unknown(line, "it is not who it says")
        elif message.name in self._peers:
            self._believe(line, message.name)
        else:
            self._said[line] = message.name

    def _believe(self, line: int, name: str) -> None:
        """A member that is known here has opened a line."""
        if sum(one == name for one in self._names.values()) >= MOST_OF_ONE:
            self._forget_unknown(line, "it has opened too many lines")
            return
        self._said.pop(line, None)
        del self._unknown[line]
        self._lines.trust(line)
        self._lines.send(line, Believed())
        self._names[line] = name
        self._peers[name].lines.append(line)

    def _forget_unknown(self, line: int, reason: str) -> None:
        self._lines.hang_up(line, reason)
        self._said.pop(line, None)
        del self._unknown[line]

    def _is_true(self, said: Introduced) -> bool:
        signed = _signed(self.name, self._own_key)
        return is_of(said.name, said.public_key) and self._identity.verify(said.public_key, signed, said.signature)

    def _ended(self, line: int) -> None:
        self._unknown.pop(line, None)
        self._said.pop(line, None)
        self._on_their_way.pop(line, None)
        peer = self._peers.get(self._names.pop(line, ""))
        was_unbelieved = self._unbelieved.pop(line, None) is not None
        if peer is not None and line in peer.lines:
            peer.lines.remove(line)
        elif peer is not None and was_unbelieved:
            peer.dialling = None
            if not peer.lines:
                self._nobody_there(peer, time.monotonic())


def _signed(listener: str, key: str) -> bytes:
    return b"ravnest experts: a line to " + listener.encode() + b" " + key.encode()


def members_key(token: bytes) -> KeyPair:
    """The key pair that all who have the token can make."""
    return KeyPair.of_secret(hashlib.sha256(b"ravnest experts: the members' key " + token).hexdigest())
