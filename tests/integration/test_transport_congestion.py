"""Connections within this machine lose their pacing; those beyond it are bound where the link is known; others stay."""

import contextlib
import os
import socket
import time
from pathlib import Path

import pytest

from ring_allreduce.ring import RING_KINDS
from ring_allreduce.transport import Codec, ZmqEndpoint
from ring_allreduce.transport.zmq.lanes import LARGEST_BOUND_BYTES, tune

pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_CONGESTION"), reason="this system has no TCP_CONGESTION")


def congestion_control(connection: socket.socket) -> bytes:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


def test_a_connection_to_this_machine_is_tuned() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert tune(client.fileno())
        assert congestion_control(client) == b"reno"


def test_beyond_this_machine_what_is_under_way_is_bound_where_the_link_is_known() -> None:
    with socket.create_server(("127.0.0.2", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert client.getsockname()[0] != client.getpeername()[0]  # as if it were another machine
        before = client.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        assert not tune(client.fileno())
        assert not tune(client.fileno(), LARGEST_BOUND_BYTES + 1)  # the system could only make less of it
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == before
        assert tune(client.fileno(), 100_000)
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 100_000
        assert congestion_control(client) == congestion_control(server)


def test_what_is_no_connection_of_this_machine_is_left_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        before = congestion_control(listening)
        assert not tune(listening.fileno())
        assert congestion_control(listening) == before
    reader, writer = os.pipe()
    os.close(writer)
    assert not tune(reader)
    os.close(reader)
    assert not tune(reader)


@pytest.mark.timeout(30)
def test_an_endpoint_tunes_what_it_sends_through() -> None:
    codec, token = Codec(RING_KINDS), bytes(16)
    a, b = (ZmqEndpoint(name, codec=codec, token=token, shared_memory=False) for name in "ab")
    try:
        a.connect({"b": b.address})
        deadline_s = time.monotonic() + 10
        wanted = {b.address.pipeline_port: b"", b.address.bulk_port: b""}
        while set(wanted.values()) != {b"reno"} and time.monotonic() < deadline_s:
            a.poll(0.01)
            b.poll(0.01)
            wanted |= _connections_to(wanted)
        assert set(wanted.values()) == {b"reno"}
    finally:
        a.close()
        b.close()


def _connections_to(ports: dict[int, bytes]) -> dict[int, bytes]:
    """Congestion control by port, of this process's connections to these ports."""
    found = {}
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(descriptor.name))) as connection:
            if connection.family == socket.AF_INET and connection.getpeername()[1] in ports:
                found[connection.getpeername()[1]] = congestion_control(connection)
    return found
