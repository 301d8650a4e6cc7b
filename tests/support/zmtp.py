"""ZeroMQ's wire protocol from outside: which sockets a process listens on, and how they want to be greeted."""

import contextlib
import socket

import psutil

GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00"  # up to the version: what follows would end the connection
MECHANISM = slice(12, 32)


def mechanism(port: int) -> str | None:
    """How a ZeroMQ socket at `port` wants to be greeted; None when there is none."""
    answer = b""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
        connection.sendall(GREETING)
        while len(answer) < MECHANISM.stop and (data := connection.recv(64)):
            answer += data
    is_zmq = len(answer) >= MECHANISM.stop and answer[:1] == b"\xff" and answer[9:10] == b"\x7f"
    return answer[MECHANISM].rstrip(b"\0").decode() if is_zmq else None


def listening(process: psutil.Process) -> set[int]:
    """The TCP ports on which `process` listens."""
    return {port for _, port in listening_at(process)}


def listening_at(process: psutil.Process) -> set[tuple[str, int]]:
    """The addresses and ports on which `process` listens."""
    return {tuple(one.laddr) for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN}
