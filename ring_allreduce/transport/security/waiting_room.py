"""Bounds on the connections that nobody has admitted yet: so many of one address, and so many in all.

Whoever reaches a port can open connections, and what they send has to be read before anyone knows whether they may
stay. `WaitingRoom` decides, without a socket, who is turned away when an address has too many, or all together have:
the oldest of the address that has the most. So one address cannot keep out another, and a peer, which needs a few round
trips, gets in unless a whole room of others comes meanwhile.

`Lobby` keeps the room of the listening sockets of one ZeroMQ context. ZeroMQ accepts connections by itself, but tells
of each one in the socket's monitor, and waits while more of its news are unread than the monitor holds: so it cannot
run ahead of who reads them. The kernel tells how many bytes were sent on a connection, and so whether its handshake has
ended: whoever listens says a number of bytes that is known until it admits somebody, and more then. Only Linux tells
that; elsewhere nobody is turned away, and only the size of a frame and the deadline of the handshake bound a stranger.

In: monitors of listening sockets. Out: connections that end, and who was turned away.
"""

import contextlib
import ctypes
import os
import socket
import struct
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import zmq

from ring_allreduce.transport.stats import Strangers

MOST_OF_ADDRESS = 64
"""Connections of one address that may be unadmitted at a time."""

MOST_IN_ALL = 128
"""Connections of all addresses that may be unadmitted at a time."""

TRIM_AFTER_S = 1.0
"""Memory is given back so long after an unadmitted connection has ended, so that many are given back at once."""

TRIM_EVERY_S = 5.0
"""Memory is given back at most this often: it stops all threads that ask for memory, for some milliseconds."""

SAID_UNADMITTED = {False: 64 + 20, True: 64 + 170 + 20}
"""The most bytes that a listener has sent to who is not admitted, without and with keys: the greeting and, with keys,
Curve's WELCOME, and an ERROR. A READY is larger than what is left (ZMTP, ZeroMQ RFC 23, 24 and 25)."""

EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED

_BYTES_SENT = struct.Struct("=200xQQ")
"""tcpi_bytes_sent and tcpi_bytes_retrans of the kernel's struct tcp_info (Linux 4.19)."""


class WaitingRoom:
    """The connections that were not admitted yet, the oldest first. Each is known by a number of the caller's."""

    def __init__(self, most_of_address: int = MOST_OF_ADDRESS, most_in_all: int = MOST_IN_ALL) -> None:
        self._most_of_address = most_of_address
        self._most_in_all = most_in_all
        self._address: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._address)

    def enter(self, number: int, address: str, admitted: Callable[[int], bool]) -> dict[int, str]:
        """A connection has come. Return whom to turn away: the addresses by their numbers, which are forgotten here.

        `admitted` says whether the connection of a number was admitted meanwhile. It is asked only when the room is
        too full.
        """
        self._address.pop(number, None)
        self._address[number] = address
        counts = Counter(self._address.values())
        if counts[address] <= self._most_of_address and len(self._address) <= self._most_in_all:
            return {}
        self._address = {each: where for each, where in self._address.items() if not admitted(each)}
        away: dict[int, str] = {}
        while True:
            ((fullest, count),) = Counter(self._address.values()).most_common(1) or [("", 0)]
            if count <= self._most_of_address and len(self._address) <= self._most_in_all:
                return away
            oldest = next(each for each, where in self._address.items() if where == fullest)
            away[oldest] = self._address.pop(oldest)

    def leave(self, number: int) -> bool:
        """A connection has ended. Return whether it was in the room."""
        return self._address.pop(number, None) is not None


class Lobby:
    """The unadmitted connections of the listening sockets of one context. One thread takes the news of its monitors."""

    def __init__(self, strangers: Strangers, *, with_keys: bool) -> None:
        """`strangers`: counts who is turned away. `with_keys`: whether the listening sockets use Curve, or PLAIN."""
        self._room = WaitingRoom()
        self._strangers = strangers
        self._said = SAID_UNADMITTED[with_keys]
        self._ends: dict[int, _Ends] = {}  # by the connection's descriptor
        self._trim_at_s: float | None = None
        self._trimmed_s = float("-inf")
        self._trims = 0

    def take(self, news: Mapping[str, Any], now_s: float) -> None:
        """Take one message of a monitor, as zmq.utils.monitor returns it: a connection has come or gone."""
        descriptor = int(news["value"])
        if news["event"] == zmq.EVENT_DISCONNECTED:
            self._ends.pop(descriptor, None)
            if self._room.leave(descriptor):
                self._trim_later(now_s)
        elif news["event"] == zmq.EVENT_ACCEPTED and _KNOWS_BYTES_SENT:
            ends = _ends(descriptor)
            if ends is None or ends.port != int(bytes(news["endpoint"]).rpartition(b":")[2]):
                return  # it has ended, and the system has perhaps given its descriptor to another connection
            self._ends[descriptor] = ends
            away = self._room.enter(descriptor, ends.address, self._admitted)
            for each, address in away.items():
                self._strangers.came(address)
                self._hang_up(each)
                self._trim_later(now_s)

    def until_trim_s(self, now_s: float) -> float | None:
        """Return how long it is until give_back() has something to do; None for as long as nothing comes."""
        return None if self._trim_at_s is None else max(0.0, self._trim_at_s - now_s)

    def give_back(self, now_s: float) -> None:
        """Give memory back to the system, a while after unadmitted connections have ended."""
        if self._trim_at_s is not None and now_s >= self._trim_at_s:
            self._trims -= 1
            # ZeroMQ frees what a connection held some time after it tells that it has ended: so there is a second time.
            self._trim_at_s, self._trimmed_s = (now_s + TRIM_EVERY_S if self._trims > 0 else None), now_s
            give_memory_back()

    def _trim_later(self, now_s: float) -> None:
        self._trims = 2
        if self._trim_at_s is None:
            self._trim_at_s = max(now_s + TRIM_AFTER_S, self._trimmed_s + TRIM_EVERY_S)

    def _admitted(self, descriptor: int) -> bool:
        """Say whether the connection needs no place in the room: it was admitted, or has ended."""
        if _ends(descriptor) != self._ends.get(descriptor):
            return True
        with contextlib.suppress(OSError), _duplicate(descriptor) as connection:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_SENT.size)
            if len(info) == _BYTES_SENT.size:  # older kernels tell less
                sent, again = _BYTES_SENT.unpack(info)
                return bool(sent - again > self._said)
        return True

    def _hang_up(self, descriptor: int) -> None:
        ends = self._ends.pop(descriptor, None)
        if ends is not None and ends == _ends(descriptor):
            with contextlib.suppress(OSError), _duplicate(descriptor) as connection:
                connection.shutdown(socket.SHUT_RDWR)  # ZeroMQ reads the end of it, and closes it


def monitor_of(listening: "zmq.Socket[bytes]") -> "zmq.Socket[bytes]":
    """Return what tells of the connections of a listening socket, which is not bound yet.

    It holds as little unread news as ZeroMQ allows, some thousand, since so many connections may be accepted unseen.
    """
    address = f"inproc://connections.{id(listening)}"
    listening.monitor(address, EVENTS)
    monitor: zmq.Socket[bytes] = listening.context.socket(zmq.PAIR)
    monitor.set(zmq.RCVHWM, 1)
    monitor.connect(address)
    return monitor


class _Ends(NamedTuple):
    """Both ends of a connection, which no other has as long as it lives."""

    port: int
    address: str
    peer: object


def _duplicate(descriptor: int) -> socket.socket:
    # The original is zmq's, whose thread may close it at any time.
    return socket.socket(fileno=os.dup(descriptor))


def _ends(descriptor: int) -> _Ends | None:
    """Return the ends of a connection; None when it has ended."""
    with contextlib.suppress(OSError), _duplicate(descriptor) as connection:
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            peer = connection.getpeername()
            return _Ends(int(connection.getsockname()[1]), str(peer[0]), peer)
    return None


def give_memory_back() -> None:
    """Let the C library return what it holds and nobody uses to the system. Only glibc needs to be asked."""
    if _TRIM is not None:
        _TRIM(0)


def _find_trim() -> Callable[[int], int] | None:
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None  # another C library, or another system
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return cast("Callable[[int], int]", trim)


_TRIM = _find_trim()
_KNOWS_BYTES_SENT = sys.platform == "linux" and hasattr(socket, "TCP_INFO")
