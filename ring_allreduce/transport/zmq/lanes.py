"""The way of messages to one peer: two bounded queues, and behind each a lane.

A lane goes over TCP by ZeroMQ (`ZmqLane`), or to a peer on this machine by shared memory (`OutgoingChannel`). PIPELINE
is handed over before BULK, and little of BULK at a time, so that a PIPELINE message waits for at most a few chunks that
are already on their way. An emulated node, if there is one, lies between send() and the queues.

In: the frames of messages. Out: the same frames in the lanes, or PeerStalled. The endpoint decides when to try again.

`TunedConnections` sets what TCP may have under way. Within one machine congestion control has nothing to find out, but
BBR, the default of many systems, paces each connection with timers, which on loopback costs nearly twice the processor
time per byte (experiments/allreduce shows what is reached). Reno does not, and any user may choose it on every Linux.
Connections that leave the machine keep the congestion control that its administrator chose. But a pipeline sends in
bursts, and after each pause TCP fills the router's queue until it overflows, and sends again what was lost. Where the
link's rate and delay are known, the size of the send buffer bounds what is under way, so that a burst waits here, where
the order of lanes is ours, and not in the router. zmq has no option for either, but its socket monitor tells the
descriptor of each connection that it makes.
"""

import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Protocol

import zmq
from zmq.utils.monitor import recv_monitor_message

from ring_allreduce.errors import PeerStalled, TransportError
from ring_allreduce.transport.emulation.emulated_node import EmulatedNode
from ring_allreduce.transport.endpoint import Delivery, PeerAddress, TransportLimits
from ring_allreduce.transport.security.doorkeeper import Context, present_keys, present_token
from ring_allreduce.transport.security.keys import Keys
from ring_allreduce.transport.shared.channel import OutgoingChannel, channel_name
from ring_allreduce.transport.shared.memory import LentMemory
from ring_allreduce.transport.stats import Lane
from ring_allreduce.transport.zmq.pieces import split

HANDED_TO_ZMQ = {Lane.PIPELINE: 16, Lane.BULK: 4}
"""Messages that zmq may hold for one peer (its high-water mark); the others wait in our queues, where they count."""

MOST_OF_HANDSHAKE_BYTES = 4096
"""The largest frame that a connecting socket takes. It is far more than any that belongs to a handshake."""

TEND_EVERY_S = 0.002
"""The interval at which OutgoingLane.tend is called."""

LOOK_AGAIN_S = 1.0
"""The interval at which a socket that has connected is asked whether it has connected again."""

FIRST_LOOK_S = 0.002
"""The interval at which it is asked before that: asking costs as much as sending a message."""

LARGEST_BOUND_BYTES = 2 * 212_992
"""The buffer size that every Linux lets a connection have (net.core.wmem_max; the system doubles it). A link that holds
more keeps the buffer that TCP sizes by itself, since setting it would make it smaller.
"""

_WITHOUT_PACING = b"reno"
_WRITABLE = int(zmq.POLLOUT)

Frames = list[bytes | memoryview]
Watch = tuple["zmq.Socket[bytes] | int", bool]
"""What to poll, and whether to wait until it is writable (else readable)."""


class OutgoingLane(Protocol):
    """One lane to one peer. What it holds is bounded."""

    @property
    def broken(self) -> bool:
        """Say whether it will never take anything again."""
        ...

    def takes(self) -> bool:
        """Say whether it takes another message now."""
        ...

    def send(self, frames: Frames) -> bool:
        """Send one message, when takes() allows it; False: try again, or, if it is broken, over another lane."""
        ...

    def watch(self) -> Watch:
        """Return what to wait for before it may take more."""
        ...

    def tend(self, now_s: float) -> None:
        """Do what has to be done now and then."""
        ...

    def close(self, linger_ms: int) -> None:
        """Go on sending what it holds for `linger_ms`, in the background."""
        ...


class PeerLanes:
    """Both lanes to one peer, each with a bounded queue in front of it."""

    def __init__(
        self,
        peer: str,
        connect: Callable[[Lane, bool], OutgoingLane],
        limits: TransportLimits,
        node: EmulatedNode[Frames, Delivery],
    ) -> None:
        """`connect(lane, may_share)`: makes a lane, by shared memory only if `may_share`. `node`: the emulated node."""
        self.peer = peer
        self._connect = connect
        self._lanes: dict[Lane, OutgoingLane] = {}
        try:
            for lane in Lane:
                self._lanes[lane] = connect(lane, True)
        except BaseException:
            self.close(linger_ms=0)
            raise
        self._limits = limits
        self._node = node
        self._waiting: dict[Lane, deque[Frames]] = {lane: deque() for lane in Lane}
        self._refused: set[Lane] = set()
        self._tend_at_s = float("-inf")

    def queued(self, lane: Lane) -> int:
        """Return how many messages of the lane have not been handed over."""
        return len(self._waiting[lane]) + self._node.queued(self.peer, lane)

    def push(self, lane: Lane, frames: Frames, n_bytes: int, now_s: float) -> None:
        """Queue one message of `n_bytes`. Raises PeerStalled when the lane's queue is full."""
        if self.queued(lane) >= self._limits.queue_messages:
            self._refused.add(lane)
            raise PeerStalled(self.peer, lane.value, self.queued(lane))
        if self._node.shapes(self.peer):
            self._node.push(self.peer, lane, frames, n_bytes, now_s)
        else:
            self._waiting[lane].append(frames)

    def left(self, lane: Lane, frames: Frames) -> None:
        """Queue a message that has passed the emulated uplink and the link to this peer."""
        self._waiting[lane].append(frames)

    def flush(self, now_s: float) -> None:
        """Hand over what waits, as far as the lanes take it."""
        if now_s >= self._tend_at_s:
            self._tend_at_s = now_s + TEND_EVERY_S
            for outgoing in self._lanes.values():
                outgoing.tend(now_s)
        for lane, waiting in self._waiting.items():
            if waiting and not self._drain(lane):
                return  # BULK stays behind PIPELINE: they share the way to this peer

    def watch(self) -> Watch | None:
        """Return what to wait for before flush() can hand over more, or None when nothing waits."""
        blocked = next((lane for lane, waiting in self._waiting.items() if waiting), None)
        return None if blocked is None else self._lanes[blocked].watch()

    def room_again(self) -> bool:
        """Say whether a lane that refused a message is at most half full now; True once for each refusal."""
        if not self._refused:
            return False
        roomy = {lane for lane in self._refused if self.queued(lane) <= self._limits.queue_messages // 2}
        self._refused -= roomy
        return bool(roomy)

    def close(self, linger_ms: int) -> None:
        """Close the lanes; what they hold goes on being sent for `linger_ms` in the background."""
        for outgoing in self._lanes.values():
            outgoing.close(linger_ms)

    def _drain(self, lane: Lane) -> bool:
        waiting = self._waiting[lane]
        while waiting:
            outgoing = self._lanes[lane]
            if outgoing.takes() and outgoing.send(waiting[0]):
                waiting.popleft()
            elif outgoing.broken:
                # A peer that is gone lost what it had not read; one that lives reads it, perhaps after what follows.
                outgoing.close(0)
                self._lanes[lane] = self._connect(lane, False)
            else:
                return False
        return True


def connect_lane(
    peer: str,
    address: PeerAddress,
    lane: Lane,
    context: Context,
    token: bytes,
    keys: Keys | None,
    lent: LentMemory | None,
    in_flight_bytes: int | None = None,
) -> OutgoingLane:
    """Return a lane to `peer`, which connects in the background. Raises TransportError when zmq cannot use `address`.

    `lent`: what this endpoint lends; the lane then uses shared memory if the peer listens on this machine and there are
    no `keys`. None: it never does. `in_flight_bytes`: see TransportLimits.
    """
    if lent is not None and keys is None:
        name = channel_name(address.host, address.pipeline_port, address.bulk_port)
        channel = OutgoingChannel.connect(name, token, lane, lent)
        if channel is not None:
            return channel
    return ZmqLane(peer, address, lane, context, token, keys, in_flight_bytes)


class ZmqLane:
    """A DEALER that is connected to the ROUTER of a peer's lane."""

    broken = False
    """zmq connects again by itself."""

    def __init__(
        self,
        peer: str,
        address: PeerAddress,
        lane: Lane,
        context: Context,
        token: bytes,
        keys: Keys | None,
        in_flight_bytes: int | None = None,
    ) -> None:
        """See connect_lane."""
        self._socket = _dealer(context, address.host, lane)
        self._connections = TunedConnections(self._socket, in_flight_bytes)
        port = address.pipeline_port if lane is Lane.PIPELINE else address.bulk_port
        try:
            if keys is None:
                present_token(self._socket, token)
            else:
                present_keys(self._socket, keys, peer)
            self._socket.connect(endpoint_url(address.host, port))
        except zmq.ZMQError as error:
            self.close(linger_ms=0)
            raise TransportError(f"cannot connect to peer {peer!r} at {address}: {error}") from error

    def takes(self) -> bool:
        """Say whether zmq holds less than its high-water mark."""
        return bool(int(self._socket.get(zmq.EVENTS)) & _WRITABLE)  # an exception would cost more than the message

    def send(self, frames: Frames) -> bool:
        """Give one message to zmq, which sends large frames from where they lie."""
        try:
            self._socket.send_multipart(split(frames), flags=zmq.DONTWAIT, copy=False)
        except zmq.Again:  # the connection was lost since takes() was asked
            return False
        return True

    def watch(self) -> Watch:
        """Return the socket, which becomes writable."""
        return self._socket, True

    def tend(self, now_s: float) -> None:
        """Tune new connections."""
        self._connections.tend(now_s)

    def close(self, linger_ms: int) -> None:
        """Close the socket; zmq goes on sending."""
        self._connections.close(self._socket)
        self._socket.close(linger=linger_ms)


class TunedConnections:
    """Tunes the connections that one connecting socket makes."""

    def __init__(self, connecting: "zmq.Socket[bytes]", in_flight_bytes: int | None = None) -> None:
        """Make one before connect(), in the socket's thread. `in_flight_bytes`: see tune."""
        self._in_flight_bytes = in_flight_bytes
        self._monitor = connecting.get_monitor_socket(zmq.EVENT_CONNECTED)
        self._look_at_s = float("-inf")
        self._every_s = FIRST_LOOK_S

    def tend(self, now_s: float) -> None:
        """Tune what has connected since the last call. It is cheap enough to be called before each message."""
        if now_s < self._look_at_s:
            return
        with contextlib.suppress(zmq.Again):
            while True:
                tune(int(recv_monitor_message(self._monitor, zmq.DONTWAIT)["value"]), self._in_flight_bytes)
                self._every_s = LOOK_AGAIN_S
        self._look_at_s = now_s + self._every_s

    def close(self, connecting: "zmq.Socket[bytes]") -> None:
        """Stop listening to the socket's monitor, which has to happen before the socket is closed."""
        connecting.disable_monitor()
        self._monitor.close(linger=0)


def tune(descriptor: int, in_flight_bytes: int | None = None) -> bool:
    """Tune the connection `descriptor`, and return whether there was anything to tune. Linux only.

    A connection within this machine gets a congestion control without pacing. One beyond it gets a send buffer that
    holds at most `in_flight_bytes`, unsent bytes included (None: it stays as it is).
    """
    if not hasattr(socket, "TCP_CONGESTION"):
        return False
    # A duplicate is used: the original is zmq's, whose thread may close it at any time, and then all this fails.
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        if connection.getsockname()[0] == connection.getpeername()[0]:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _WITHOUT_PACING)
            return True
        if in_flight_bytes is not None and in_flight_bytes <= LARGEST_BOUND_BYTES:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, in_flight_bytes // 2)
            return True
    return False


def endpoint_url(host: str, port: int | str) -> str:
    """Return `tcp://host:port`, with the brackets that an IPv6 address needs."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def _dealer(context: Context, host: str, lane: Lane) -> "zmq.Socket[bytes]":
    dealer = context.socket(zmq.DEALER)
    dealer.set(zmq.SNDHWM, HANDED_TO_ZMQ[lane])
    # A peer says nothing here but the handshake. Who stands in its place may say anything.
    dealer.set(zmq.MAXMSGSIZE, MOST_OF_HANDSHAKE_BYTES)
    dealer.set(zmq.RCVHWM, 1)
    dealer.set(zmq.IPV6, int(":" in host))
    dealer.set(zmq.RECONNECT_IVL, 50)
    dealer.set(zmq.RECONNECT_IVL_MAX, 1000)
    # The kernel answers keepalives even when the process is frozen; they also keep a NAT's mapping open.
    dealer.set(zmq.TCP_KEEPALIVE, 1)
    dealer.set(zmq.TCP_KEEPALIVE_IDLE, 30)
    dealer.set(zmq.TCP_KEEPALIVE_INTVL, 10)
    return dealer
