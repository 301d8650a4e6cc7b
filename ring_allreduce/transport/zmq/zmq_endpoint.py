"""The endpoint that real runs use: ZeroMQ over TCP, and shared memory between processes of one machine.

A ROUTER is bound for each lane, and a DEALER connects to each peer's (lanes.py). In: messages for named peers. Out:
deliveries, PIPELINE first. A connection that does not show the run's token, or an allowed key, is refused in the
handshake, and so are too many that say nothing (waiting_room.py). Garbage of any kind is dropped and counted by cause,
and nothing that arrives can raise here.
"""

import contextlib
import math
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import torch
import zmq
from torch import Tensor

from ring_allreduce.errors import TransportError, UnknownPeer
from ring_allreduce.transport.emulation.emulated_node import EmulatedNode
from ring_allreduce.transport.emulation.links import LinkShape, NodeShape
from ring_allreduce.transport.endpoint import Delivery, PeerAddress, TransportLimits
from ring_allreduce.transport.envelope import Envelope, open_delivery, still_wanted
from ring_allreduce.transport.message import Codec, Message
from ring_allreduce.transport.security.doorkeeper import Context, Doorkeeper, guard, proven_name
from ring_allreduce.transport.security.keys import Keys
from ring_allreduce.transport.shared.channel import channel_name
from ring_allreduce.transport.shared.listener import listen
from ring_allreduce.transport.shared.memory import LentMemory
from ring_allreduce.transport.stats import DropCause, Lane, TransportStats
from ring_allreduce.transport.zmq.lanes import Frames, OutgoingLane, PeerLanes, Watch, connect_lane, endpoint_url
from ring_allreduce.transport.zmq.pieces import LARGEST_FRAME_BYTES, joined

TAKEN_PER_POLL = {Lane.PIPELINE: 256, Lane.BULK: 16}
"""Messages that one poll() takes from a lane: few of BULK, so that PIPELINE is read again soon."""

HELD_UNREAD = {Lane.PIPELINE: 64, Lane.BULK: 8}
"""Messages of one peer that zmq holds until poll() takes them; beyond, TCP holds the sender back."""

KEPT_BYTES = (32 << 20) - (1 << 16)
"""Just below the largest size of blocks that glibc keeps for reuse (DEFAULT_MMAP_THRESHOLD_MAX)."""

_READABLE = int(zmq.POLLIN)


class ZmqEndpoint:
    """An `Endpoint` over TCP. All methods but wake() belong to the thread that made it."""

    def __init__(
        self,
        name: str,
        *,
        codec: Codec,
        token: bytes,
        host: str = "127.0.0.1",
        limits: TransportLimits = TransportLimits(),  # noqa: B008 - frozen
        links: Mapping[str, LinkShape] | None = None,
        node: NodeShape | None = None,
        keys: Keys | None = None,
        shared_memory: bool = True,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Bind both lanes to free ports of `host`, an address of this machine that the peers can reach.

        `token`: 16 bytes, the same in one run; without `keys` it travels in clear, see doorkeeper.py. `limits`: see
        TransportLimits. `links`, `node`: what is emulated, see emulated_node.py. `keys`: encrypt everything, and hear
        only the members of their allow-list, of which `name` is one. `shared_memory`: use it with peers of this
        machine, network namespace and user, unless there are keys. `now`: the clock of emulation, in seconds.

        Raises InvalidInput for a token of another length or an allow-list without this member, TransportError when
        `host` cannot be bound.
        """
        if keys is not None:
            keys.require_own_name(name)
        self.name = name
        self.epoch = 0
        self.stats = TransportStats()
        self._envelope = Envelope(codec, token, limits.max_message_bytes)
        self._token = token
        self._keys = keys
        self._limits = limits
        self._node: EmulatedNode[Frames, Delivery] = EmulatedNode(name, links or {}, node, self.stats.lateness)
        self._now = now
        self._peers: dict[str, PeerLanes] = {}
        self._addresses: dict[str, PeerAddress] = {}
        self._closed = False
        keep_large_blocks()
        self._context: Context = zmq.Context()
        self._doorkeeper = Doorkeeper(self._context, token, keys)
        self.stats.strangers = self._doorkeeper.strangers
        self._refused = 0
        try:
            self._routers = {lane: _router(self._context, host, lane, limits, keys, self._doorkeeper) for lane in Lane}
        except zmq.ZMQError as error:
            self._doorkeeper.stop()
            self._context.destroy(linger=0)
            raise TransportError(f"cannot listen on {host!r}: {error}") from error
        self._doorkeeper.start()
        ports = {lane: _port(router) for lane, router in self._routers.items()}
        self.address = PeerAddress(host, ports[Lane.PIPELINE], ports[Lane.BULK])
        self._shares = shared_memory and keys is None
        self._shared = None
        if self._shares:
            name_of_channels = channel_name(host, self.address.pipeline_port, self.address.bulk_port)
            self._shared = listen(name_of_channels, token, self.stats.dropped, limits.max_message_bytes)
        self._lent = LentMemory(available=self._shared is not None)
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_fd = self._wake_reader.fileno()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._poller = zmq.Poller()
        self._poller.register(self._wake_fd, zmq.POLLIN)
        self._other_fd: int | None = None
        for router in self._routers.values():
            self._poller.register(router, zmq.POLLIN)
        if self._shared is not None:
            self._poller.register(self._shared.fileno(), zmq.POLLIN)
        self._watched: dict[str, Watch] = {}

    def connect(self, peers: Mapping[str, PeerAddress]) -> None:
        """Make `peers` known. Messages that wait for an address that changed are dropped. See `Endpoint.connect`."""
        others = {peer: address for peer, address in peers.items() if peer != self.name}
        for peer, address in others.items():
            address.require_usable(peer)
            if self._keys is not None:
                self._keys.public_of(peer)
        for peer, address in others.items():
            if peer in self._peers and self._addresses[peer] == address:
                continue
            outgoing = PeerLanes(peer, partial(self._lane, peer, address), self._limits, self._node)
            self.disconnect([peer])
            self._peers[peer] = outgoing
            self._addresses[peer] = address

    def _lane(self, peer: str, address: PeerAddress, lane: Lane, may_share: bool) -> OutgoingLane:
        lent, most = self._lent if may_share and self._shares else None, self._limits.in_flight_bytes.get(peer)
        return connect_lane(peer, address, lane, self._context, self._token, self._keys, lent, most)

    def disconnect(self, peers: Iterable[str]) -> None:
        """Forget `peers`, and what is queued for them. See `Endpoint.disconnect`."""
        for peer in peers:
            known = self._peers.pop(peer, None)
            if known:
                self._watch(peer, None)
                self._node.forget(peer)
                known.close(linger_ms=0)

    def empty(self, elements: int, dtype: torch.dtype) -> Tensor:
        """Return a vector that peers of this machine read where it lies. See `Endpoint.empty`."""
        return self._lent.empty(elements, dtype)

    def send(self, peer: str, lane: Lane, message: Message, tensors: Sequence[Tensor] = ()) -> None:
        """Queue a message, and hand it to zmq at once when its turn has come. See `Endpoint.send`."""
        outgoing = self._peers.get(peer)
        if outgoing is None:
            raise UnknownPeer(peer)
        frames, n_bytes = self._envelope.seal(self.name, self.epoch, message, tensors)
        now_s = self._now()
        outgoing.push(lane, frames, n_bytes, now_s)
        outgoing.flush(now_s)
        self.stats.sent[peer, lane].add(n_bytes)

    def queued(self, peer: str, lane: Lane) -> int:
        """See `Endpoint.queued`."""
        outgoing = self._peers.get(peer)
        return 0 if outgoing is None else outgoing.queued(lane)

    def poll(self, timeout_s: float) -> list[Delivery]:
        """Send what is due and return what arrived. See `Endpoint.poll`."""
        deadline_s = self._now() + timeout_s
        woken = False
        while True:
            self._flush()
            deliveries = self._receive()
            if deliveries:
                return deliveries
            roomy = [outgoing for outgoing in self._peers.values() if outgoing.room_again()]
            now_s = self._now()
            if woken or roomy or now_s >= deadline_s:
                return []
            due_s = self._node.next_due_s()
            wait_s = (deadline_s if due_s is None else min(deadline_s, due_s)) - now_s
            ready = self._poller.poll(max(0, math.ceil(wait_s * 1000)))
            # A wake that came before is still in its pipe, and ends the wait at once.
            woken = any(who == self._wake_fd for who, _ in ready) and self._drain_wakes()
            woken = woken or any(who == self._other_fd for who, _ in ready)

    def wake_on(self, fd: int | None) -> None:
        """Let poll() return early also when `fd` is readable. It replaces the one given before; None: only that."""
        if self._other_fd is not None:
            self._poller.unregister(self._other_fd)
        self._other_fd = fd
        if fd is not None:
            self._poller.register(fd, zmq.POLLIN)

    def wake(self) -> None:
        """Make poll() return early, from any thread. It has no effect after close()."""
        # A full pipe means that a wake is already on its way; a closed one, that nobody polls any more.
        with contextlib.suppress(OSError):
            self._wake_writer.send(b"\0")

    def close(self) -> None:
        """Send what is queued for at most `linger_s`, then free the sockets. A second call has no effect."""
        if self._closed:
            return
        self._closed = True
        deadline_s = time.monotonic() + self._limits.linger_s
        for router in self._routers.values():
            self._poller.unregister(router)
        if self._shared is not None:
            self._poller.unregister(self._shared.fileno())
        while any(outgoing.queued(lane) for outgoing in self._peers.values() for lane in Lane):
            self._flush()
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                break
            self._poller.poll(max(1, math.ceil(1000 * min(left_s, 0.02))))
        linger_ms = max(0, math.ceil(1000 * (deadline_s - time.monotonic())))
        for router in self._routers.values():
            router.disable_monitor()
            router.close(linger=0)
        if self._shared is not None:
            self._shared.close()
        for outgoing in self._peers.values():
            outgoing.close(linger_ms)
        self._doorkeeper.stop()
        # Closes every socket that is open, whoever made it: term() alone would wait for one that was forgotten.
        self._context.destroy(linger=linger_ms)
        self._wake_reader.close()
        self._wake_writer.close()

    def _flush(self) -> None:
        now_s = self._now()
        for peer, lane, frames in self._node.left(now_s):
            self._peers[peer].left(lane, frames)
        for peer, outgoing in self._peers.items():
            outgoing.flush(now_s)
            self._watch(peer, outgoing.watch())

    def _watch(self, peer: str, watch: Watch | None) -> None:
        """Let the poller wake when the peer's lane that is blocked takes more; None: when no lane of it does."""
        watched = self._watched.get(peer)
        if watched == watch:
            return
        if watched is not None:
            self._poller.unregister(watched[0])
            del self._watched[peer]
        if watch is not None:
            what, until_writable = watch
            self._poller.register(what, zmq.POLLOUT if until_writable else zmq.POLLIN)
            self._watched[peer] = watch

    def _ask_doorkeeper(self) -> None:
        """Count connections that it refused like messages without the token. Raises TransportError if it has ended."""
        if self._doorkeeper.failure is not None:
            raise TransportError(f"{self.name} admits no peers any more: {self._doorkeeper.failure!r}")
        refused = self._doorkeeper.refused
        if refused > self._refused:
            self.stats.dropped[DropCause.WRONG_TOKEN] += refused - self._refused
            self._refused = refused

    def _receive(self) -> list[Delivery]:
        self._ask_doorkeeper()
        deliveries: list[Delivery] = []
        if self._shared is not None:
            self._shared.look()
        for lane, router in self._routers.items():
            for _ in range(TAKEN_PER_POLL[lane]):
                if not int(router.get(zmq.EVENTS)) & _READABLE:  # an exception would cost more than the message
                    break
                frames = router.recv_multipart(flags=zmq.DONTWAIT, copy=False)
                # The first frame is the identity that the ROUTER gave to the connection: it says nothing.
                views = joined([frame.buffer for frame in frames[1:]])
                proven = None if self._keys is None else proven_name(frames[0])
                self._open(views, lane, deliveries, proven)
            if self._shared is not None:
                for views in self._shared.take(lane, TAKEN_PER_POLL[lane]):
                    self._open(views, lane, deliveries, None)
        for _, delivery in self._node.entered(self._now()):
            if still_wanted(delivery, self._peers, self.stats):
                deliveries.append(delivery)
        return deliveries

    def _open(self, views: list[memoryview], lane: Lane, deliveries: list[Delivery], proven: str | None) -> None:
        delivery = open_delivery(self._envelope, views, self._peers, lane, self.stats, proven)
        if delivery is None:
            return
        if self._node.delays(delivery.sender):
            self._node.came(delivery.sender, lane, delivery, sum(view.nbytes for view in views), self._now())
        else:
            deliveries.append(delivery)

    def _drain_wakes(self) -> bool:
        try:
            return bool(self._wake_reader.recv(4096))
        except BlockingIOError:
            return False


def _router(
    context: Context, host: str, lane: Lane, limits: TransportLimits, keys: Keys | None, doorkeeper: Doorkeeper
) -> "zmq.Socket[bytes]":
    router = context.socket(zmq.ROUTER)
    guard(router, keys)
    doorkeeper.watch(router)
    # What a stranger can make it hold. What a message may have in all is checked by the envelope.
    router.set(zmq.MAXMSGSIZE, min(limits.max_message_bytes, LARGEST_FRAME_BYTES))
    router.set(zmq.RCVHWM, HELD_UNREAD[lane])
    router.set(zmq.IPV6, int(":" in host))
    router.bind(endpoint_url(host, "*"))
    return router


def _port(router: "zmq.Socket[bytes]") -> int:
    return int(router.get_string(zmq.LAST_ENDPOINT).rstrip("\0").rpartition(":")[2])


def keep_large_blocks() -> None:
    """Let this process keep the memory of messages of up to KEPT_BYTES for the next ones.

    Fresh pages cost a third of what copying into them does. glibc gives a freed block back to the system at once, until
    it has seen one as large being freed; from then on it keeps blocks of that size. This frees one whose pages were
    never touched. Elsewhere it has no effect.
    """
    bytearray(KEPT_BYTES)
