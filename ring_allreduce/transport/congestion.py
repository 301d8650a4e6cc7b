"""Connections within one machine are freed of pacing: TCP's congestion control has nothing to find out there.

BBR, the default of many systems, paces each connection with timers, which on loopback costs nearly twice the processor
time per byte (experiments/allreduce shows what is reached). Reno does not, and every Linux kernel allows it to any
user. Connections that leave the machine keep what its administrator chose. Decides nothing else.

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

_WITHOUT_PACING = b"reno"


class LocalConnections:
    """Tunes the connections that one connecting socket makes, if they end at this machine."""

    def __init__(self, connecting: "zmq.Socket[bytes]") -> None:
        """Before connect(). Belongs to the socket's thread."""
        self._monitor = connecting.get_monitor_socket(zmq.EVENT_CONNECTED)
        self._look_at_s = float("-inf")
        self._every_s = FIRST_LOOK_S

    def tend(self, now_s: float) -> None:
        """Tune what has connected since the last call; cheap enough to be called before each message."""
        if now_s < self._look_at_s:
            return
        with contextlib.suppress(zmq.Again):
            while True:
                tune(int(recv_monitor_message(self._monitor, zmq.DONTWAIT)["value"]))
                self._every_s = LOOK_AGAIN_S
        self._look_at_s = now_s + self._every_s

    def close(self, connecting: "zmq.Socket[bytes]") -> None:
        """Before the socket is closed."""
        connecting.disable_monitor()
        self._monitor.close(linger=0)


def tune(descriptor: int) -> bool:
    """Whether `descriptor` is a connection within this machine, which now has no pacing. Linux only."""
    if not hasattr(socket, "TCP_CONGESTION"):
        return False
    # A duplicate: the original is zmq's, whose thread may close it at any time, and then all this fails.
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        if connection.getsockname()[0] == connection.getpeername()[0]:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _WITHOUT_PACING)
            return True
    return False
