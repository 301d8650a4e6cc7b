"""What a connection may have under way: within one machine all it likes, on a known slow link what the link holds.

TCP's congestion control has nothing to find out within one machine. BBR, the default of many systems, paces each
connection with timers, which on loopback costs nearly twice the processor time per byte (experiments/allreduce shows
what is reached). Reno does not, and every Linux kernel allows it to any user.

Connections that leave the machine keep the congestion control that its administrator chose, but a pipeline sends in
bursts, and after each pause TCP fills the router's queue until it overflows, and sends again what was lost. Where the
link's rate and delay are known, the send buffer bounds what
is under way, so that a burst waits here, where the order of lanes is ours, and not in the router. Decides nothing else.

zmq has no option for it, but its socket monitor tells the descriptor of each connection that it makes.
"""

import contextlib
import os
import socket

import zmq
from zmq.utils.monitor import recv_monitor_message

LOOK_AGAIN_S = 1.0
"""How often a socket is asked whether it has connected again, once it had."""

FIRST_LOOK_S = 0.002
"""How often before: asking costs as much as sending a message."""

LARGEST_BOUND_BYTES = 2 * 212_992
"""What every Linux lets a connection's buffer be set to (net.core.wmem_max; the system doubles it). A link that holds
more keeps the buffer that TCP sizes by itself: setting it would make it smaller."""

_WITHOUT_PACING = b"reno"


class TunedConnections:
    """Tunes the connections that one connecting socket makes."""

    def __init__(self, connecting: "zmq.Socket[bytes]", in_flight_bytes: int | None = None) -> None:
        """Before connect(). Belongs to the socket's thread. `in_flight_bytes`: see tune."""
        self._in_flight_bytes = in_flight_bytes
        self._monitor = connecting.get_monitor_socket(zmq.EVENT_CONNECTED)
        self._look_at_s = float("-inf")
        self._every_s = FIRST_LOOK_S

    def tend(self, now_s: float) -> None:
        """Tune what has connected since the last call; cheap enough to be called before each message."""
        if now_s < self._look_at_s:
            return
        with contextlib.suppress(zmq.Again):
            while True:
                tune(int(recv_monitor_message(self._monitor, zmq.DONTWAIT)["value"]), self._in_flight_bytes)
                self._every_s = LOOK_AGAIN_S
        self._look_at_s = now_s + self._every_s

    def close(self, connecting: "zmq.Socket[bytes]") -> None:
        """Before the socket is closed."""
        connecting.disable_monitor()
        self._monitor.close(linger=0)


def tune(descriptor: int, in_flight_bytes: int | None = None) -> bool:
    """Whether `descriptor` is a connection that was tuned: one within this machine, which now has no pacing, or one
    beyond it that has at most `in_flight_bytes` (None: any number) under way, the unsent ones included. Linux only."""
    if not hasattr(socket, "TCP_CONGESTION"):
        return False
    # A duplicate: the original is zmq's, whose thread may close it at any time, and then all this fails.
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        if connection.getsockname()[0] == connection.getpeername()[0]:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _WITHOUT_PACING)
            return True
        if in_flight_bytes is not None and in_flight_bytes <= LARGEST_BOUND_BYTES:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, in_flight_bytes // 2)
            return True
    return False
