"""What strangers can make a listener hold: connections without a token, which send as much as they can, or nothing.

    python -m experiments.allreduce.strangers [--quick]

For each kind of listener a fresh process listens on loopback. First many strangers each send half of a large message,
and then others connect and say nothing. Out: a table of the listener's resident memory (before, at its peak, and after
the handshake's deadline) and of the connections that it held.
"""

import argparse
import contextlib
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil

from ring_allreduce import KeyPair, Keys, Rendezvous
from ring_allreduce.group.control_messages import FIRST_FRAME_BYTES, RENDEZVOUS
from ring_allreduce.ring import RING_KINDS
from ring_allreduce.transport import Codec, ZmqEndpoint
from ring_allreduce.transport.zmq.pieces import PIECE_BYTES

KINDS = ("endpoint", "encrypted endpoint", "rendezvous", "encrypted rendezvous")

MIB = 1 << 20
SENT_BYTES = 3 * MIB // 2
AFTER_S = 12.0
"""The deadline of a handshake is 10 s; what is held later is held for good."""

_UNSAID = 4096
"""The bytes at the end of a frame that are never sent, so that it has to be held."""


def listen(kind: str) -> None:
    """Be the listener: print the ports, and serve until standard input ends."""
    pair = KeyPair.make()
    keys = Keys(pair, {RENDEZVOUS: pair.public}) if kind.startswith("encrypted") else None
    with contextlib.ExitStack() as opened:
        if kind.endswith("rendezvous"):
            rendezvous = opened.enter_context(Rendezvous(2, keys=keys))
            _tell([int(rendezvous.address.rpartition(":")[2])])
            sys.stdin.read()
            return
        endpoint = ZmqEndpoint(RENDEZVOUS, codec=Codec(RING_KINDS), token=os.urandom(16), keys=keys)
        opened.callback(endpoint.close)
        _tell([endpoint.address.pipeline_port, endpoint.address.bulk_port])
        while not select.select([sys.stdin], [], [], 0)[0]:
            endpoint.poll(0.1)


def _tell(ports: list[int]) -> None:
    print(*ports, flush=True)


@contextlib.contextmanager
def listener(kind: str) -> Iterator[tuple[psutil.Process, list[int]]]:
    """Start a listener in a process of its own; yields it and its ports."""
    command = [sys.executable, "-m", __spec__.name, "--listen", kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield psutil.Process(process.pid), [int(port) for port in process.stdout.readline().split()]
        finally:
            process.communicate(timeout=60)


def opening(kind: str, n_bytes: int) -> bytes:
    """What a stranger says first: the beginning of a frame of so many bytes."""
    if kind == "rendezvous":
        return struct.pack(">I", min(MIB, n_bytes)) + b"\x01"
    mechanism = b"CURVE" if kind.startswith("encrypted") else b"PLAIN"
    greeting = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + mechanism.ljust(20, b"\0") + bytes(32)
    return greeting + b"\x02" + struct.pack(">Q", n_bytes)


class Watch:
    """The largest resident memory and number of connections of the listener that were seen."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self.peak_bytes = self.connections = 0

    def look(self) -> int:
        """Look again; returns the resident memory in bytes."""
        now_bytes = int(self._process.memory_info().rss)
        self.peak_bytes = max(self.peak_bytes, now_bytes)
        return now_bytes

    def count(self) -> None:
        """Count the connections that the listener has open."""
        found = [each for each in self._process.net_connections("tcp") if each.status == psutil.CONN_ESTABLISHED]
        self.connections = max(self.connections, len(found))


def flood(process: psutil.Process, ports: list[int], strangers: int, first: bytes, n_bytes: int) -> tuple[Watch, int]:
    """Open connections that send `first` and `n_bytes` more; returns what was seen, and the memory held afterwards."""
    watch, body = Watch(process), bytes(MIB)
    left: dict[socket.socket, int] = {}
    everyone = []
    for number in range(strangers):
        stranger = socket.socket()
        stranger.setblocking(False)
        everyone.append(stranger)
        with contextlib.suppress(BlockingIOError):
            stranger.connect(("127.0.0.1", ports[number % len(ports)]))
        left[stranger] = -1  # has not said the first word
        if number % 50 == 0:
            _go_on(left, first, body, n_bytes)
            watch.look()
        if number % 2000 == 0:
            watch.count()
    end_s = time.monotonic() + AFTER_S
    counted = False
    while time.monotonic() < end_s:
        _go_on(left, first, body, n_bytes)
        watch.look()
        if not counted:
            watch.count()
            counted = not left
        time.sleep(0.02)
    after = watch.look()
    for stranger in everyone:
        stranger.close()
    return watch, after


def _go_on(left: dict[socket.socket, int], first: bytes, body: bytes, n_bytes: int) -> None:
    for stranger, wanted in list(left.items()):
        try:
            if wanted < 0:
                stranger.send(first)
                left[stranger] = wanted = n_bytes
            while wanted > 0:
                wanted -= stranger.send(body[:wanted])
                left[stranger] = wanted
        except BlockingIOError:
            continue
        except OSError:
            wanted = 0  # it was turned away
        if wanted <= 0:
            del left[stranger]


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--listen", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="a tenth of the strangers")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only this kind of listener")
    options = parser.parse_args()
    if options.listen:
        listen(options.listen)
        return
    talkers, silent = (100, 1000) if options.quick else (1000, 10_123)
    print(
        f"| listener | strangers | before | peak | {AFTER_S:.0f} s later | connections held |\n"
        "|---|---|---|---|---|---|",
        flush=True,
    )
    for kind in options.kind or KINDS:
        small = FIRST_FRAME_BYTES if kind == "rendezvous" else PIECE_BYTES  # the largest that is taken of them
        cases = (
            (talkers, opening(kind, SENT_BYTES), SENT_BYTES - _UNSAID, "1.5 MB each"),
            (talkers, opening(kind, small), small - 8, f"{small >> 10} KiB each"),
            (silent, b"", 0, "silent"),
        )
        for strangers, first, n_bytes, what in cases:
            with listener(kind) as (process, ports):
                time.sleep(1.0)
                before = int(process.memory_info().rss)
                watch, after = flood(process, ports, strangers, first, n_bytes)
                sizes = " | ".join(f"{size / 1e6:.0f} MB" for size in (before, watch.peak_bytes, after))
                print(f"| {kind} | {strangers}, {what} | {sizes} | {watch.connections} |", flush=True)


if __name__ == "__main__":
    main()
