"""One lane to one peer: over TCP by ZeroMQ, or, to a peer on this machine, by shared memory. Decides which.

Both take messages as frames, and say when they take no more: what a lane holds is bounded.
"""

from typing import Protocol

import zmq

from ring_allreduce.errors import TransportError
from ring_allreduce.transport.endpoint import PeerAddress
from ring_allreduce.transport.security.doorkeeper import Context, present_keys, present_token
from ring_allreduce.transport.security.keys import Keys
from ring_allreduce.transport.shared.channel import OutgoingLine, line_name
from ring_allreduce.transport.shared.lent_memory import LentMemory
from ring_allreduce.transport.stats import Lane
from ring_allreduce.transport.zmq.congestion import TunedConnections

HANDED_TO_ZMQ = {Lane.PIPELINE: 16, Lane.BULK: 4}
"""Messages that zmq may hold for one peer (high-water mark); the rest waits where it can be counted."""

_WRITABLE = int(zmq.POLLOUT)

Parts = list[bytes | memoryview]
Watch = tuple["zmq.Socket[bytes] | int", int]
"""What a poller registers, and for which event."""


class Way(Protocol):
    """One lane to one peer."""

    def takes(self) -> bool:
        """Whether it takes another message now."""
        ...

    def send(self, parts: Parts) -> bool:
        """Send one, when it takes() one; False: try again, or, if it is broken, over another way."""
        ...

    @property
    def broken(self) -> bool:
        """Whether it will never take anything again."""
        ...

    def watch(self) -> Watch:
        """What happens when it may take more."""
        ...

    def tend(self, now_s: float) -> None:
        """Called now and then."""
        ...

    def close(self, linger_ms: int) -> None:
        """Go on sending what it holds for `linger_ms`, in the background."""
        ...


def way_to(
    peer: str,
    address: PeerAddress,
    lane: Lane,
    context: Context,
    token: bytes,
    keys: Keys | None,
    lent: LentMemory | None,
    in_flight_bytes: int | None = None,
) -> Way:
    """A lane to `peer`, which connects in the background. Raises TransportError when zmq cannot use `address`.

    `lent`: by shared memory if the peer's listener is on this machine, and without a copy what lies there; None: never.
    `in_flight_bytes`: see TransportLimits.
    """
    if lent is not None and keys is None:
        name = line_name(address.host, address.pipeline_port, address.bulk_port)
        line = OutgoingLine.connect(name, token, lane, lent)
        if line is not None:
            return SharedWay(line)
    return ZmqWay(peer, address, lane, context, token, keys, in_flight_bytes)


class SharedWay:
    """To a peer on this machine."""

    def __init__(self, line: OutgoingLine) -> None:
        self._line = line
        self.takes, self.send = line.takes, line.send

    @property
    def broken(self) -> bool:
        """The peer hung up."""
        return self._line.broken

    def watch(self) -> Watch:
        """The reader has returned something, or the system has room again."""
        return self._line.fileno(), zmq.POLLOUT if self._line.full else zmq.POLLIN

    def tend(self, now_s: float) -> None:
        """The peer hears what memory is gone."""
        self._line.tend()

    def close(self, linger_ms: int) -> None:
        """The peer reads what was sent, whenever it does."""
        self._line.close()


class ZmqWay:
    """A DEALER, to a peer's ROUTER."""

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
        """See way_to."""
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
        """Whether zmq holds less than its mark."""
        return bool(int(self._socket.get(zmq.EVENTS)) & _WRITABLE)  # an exception would cost more than the message

    broken = False
    """zmq connects again by itself."""

    def send(self, parts: Parts) -> bool:
        """Large frames are sent from where they lie."""
        try:
            self._socket.send_multipart(parts, flags=zmq.DONTWAIT, copy=False)
        except zmq.Again:  # the connection was lost since it was asked
            return False
        return True

    def watch(self) -> Watch:
        """The socket is writable."""
        return self._socket, zmq.POLLOUT

    def tend(self, now_s: float) -> None:
        """See congestion.py."""
        self._connections.tend(now_s)

    def close(self, linger_ms: int) -> None:
        """zmq goes on sending."""
        self._connections.close(self._socket)
        self._socket.close(linger=linger_ms)


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
