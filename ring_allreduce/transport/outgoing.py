"""Outgoing messages of one peer: two bounded queues in front of two DEALER sockets, perhaps behind an
emulated link.

Decides what is handed to zmq and when: PIPELINE before BULK, and little of BULK at a time (a small high-water
mark), so that a PIPELINE message waits for at most a few chunks that are already with the kernel. It does not
decide when to try: the endpoint calls.
"""

from collections import deque

import zmq

from ring_allreduce.errors import PeerStalled, TransportError
from ring_allreduce.transport.congestion import FIRST_LOOK_S, LocalConnections
from ring_allreduce.transport.doorkeeper import Context, present_keys, present_token
from ring_allreduce.transport.emulation import EmulatedLink, LinkShape
from ring_allreduce.transport.endpoint import PeerAddress, TransportLimits
from ring_allreduce.transport.keys import Keys
from ring_allreduce.transport.stats import Lane

HANDED_TO_ZMQ = {Lane.PIPELINE: 16, Lane.BULK: 4}
"""Messages that zmq may hold for one peer (high-water mark); the rest waits here, where it can be counted."""

_WRITABLE = int(zmq.POLLOUT)

Parts = list[bytes | memoryview]


class OutgoingPeer:
    """The way to one peer."""

    def __init__(
        self,
        context: Context,
        peer: str,
        address: PeerAddress,
        token: bytes,
        limits: TransportLimits,
        link: LinkShape | None,
        seed: str,
        keys: Keys | None = None,
    ) -> None:
        """Connects in the background. Raises TransportError when zmq cannot use `address`."""
        self.peer = peer
        self.address = address
        self._limits = limits
        self._link: EmulatedLink[Parts] | None = EmulatedLink(link, seed) if link else None
        self._waiting: dict[Lane, deque[Parts]] = {lane: deque() for lane in Lane}
        self._refused: set[Lane] = set()
        self.sockets: dict[Lane, zmq.Socket[bytes]] = {}
        self._local: dict[Lane, LocalConnections] = {}
        self._tend_at_s = float("-inf")
        ports = {Lane.PIPELINE: address.pipeline_port, Lane.BULK: address.bulk_port}
        try:
            for lane, port in ports.items():
                self.sockets[lane] = dealer = _dealer(context, address.host, lane)
                self._local[lane] = LocalConnections(dealer)
                if keys is None:
                    present_token(dealer, token)
                else:
                    present_keys(dealer, keys, peer)
                dealer.connect(endpoint_url(address.host, port))
        except zmq.ZMQError as error:
            self.close(linger_ms=0)
            raise TransportError(f"cannot connect to peer {peer!r} at {address}: {error}") from error

    def queued(self, lane: Lane) -> int:
        """Messages that zmq does not have yet."""
        return len(self._waiting[lane]) + (self._link.queued(lane) if self._link else 0)

    def push(self, lane: Lane, parts: Parts, n_bytes: int, now_s: float) -> None:
        """Queue one message. Raises PeerStalled when the lane's queue is full."""
        if self.queued(lane) >= self._limits.queue_messages:
            self._refused.add(lane)
            raise PeerStalled(self.peer, lane.value, self.queued(lane))
        if self._link:
            self._link.push(lane, parts, n_bytes, now_s)
        else:
            self._waiting[lane].append(parts)

    def flush(self, now_s: float) -> None:
        """Hand to zmq what is due and what it takes."""
        if now_s >= self._tend_at_s:
            self._tend_at_s = now_s + FIRST_LOOK_S
            for local in self._local.values():
                local.tend(now_s)
        if self._link:
            for lane, parts in self._link.pop_arrived(now_s):
                self._waiting[lane].append(parts)
        for lane, waiting in self._waiting.items():
            if waiting and not self._drain(lane):
                return  # BULK stays behind PIPELINE: they share the way to this peer

    def blocked_lane(self) -> Lane | None:
        """The lane whose socket has to become writable before flush() can go on."""
        return next((lane for lane, waiting in self._waiting.items() if waiting), None)

    def next_due_s(self) -> float | None:
        """When the emulated link has something to hand over; None without one."""
        return self._link.next_due_s() if self._link else None

    def room_again(self) -> bool:
        """Whether a lane that refused a message is at most half full now; True once for each refusal."""
        if not self._refused:
            return False
        roomy = {lane for lane in self._refused if self.queued(lane) <= self._limits.queue_messages // 2}
        self._refused -= roomy
        return bool(roomy)

    def close(self, linger_ms: int) -> None:
        """Close the sockets; zmq goes on sending what it holds for `linger_ms` in the background."""
        for lane, socket in self.sockets.items():
            if lane in self._local:
                self._local[lane].close(socket)
            socket.close(linger=linger_ms)

    def _drain(self, lane: Lane) -> bool:
        waiting, socket = self._waiting[lane], self.sockets[lane]
        while waiting:
            if not int(socket.get(zmq.EVENTS)) & _WRITABLE:  # an exception would cost more than the message
                return False
            socket.send_multipart(waiting[0], flags=zmq.DONTWAIT, copy=False)
            waiting.popleft()
        return True


def endpoint_url(host: str, port: int | str) -> str:
    """`tcp://host:port`, with the brackets that an IPv6 address needs."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def _dealer(context: Context, host: str, lane: Lane) -> "zmq.Socket[bytes]":
    socket = context.socket(zmq.DEALER)
    socket.set(zmq.SNDHWM, HANDED_TO_ZMQ[lane])
    socket.set(zmq.IPV6, int(":" in host))
    socket.set(zmq.RECONNECT_IVL, 50)
    socket.set(zmq.RECONNECT_IVL_MAX, 1000)
    # The kernel answers keepalives even when the process is frozen; they also keep a NAT's mapping open.
    socket.set(zmq.TCP_KEEPALIVE, 1)
    socket.set(zmq.TCP_KEEPALIVE_IDLE, 30)
    socket.set(zmq.TCP_KEEPALIVE_INTVL, 10)
    return socket
