"""Strangers who attack ports for as long as they are left: `python -m experiments.attack.strangers PORT… --seconds S`.

In: ports of 127.0.0.1 that speak ZeroMQ's protocol with CURVE. Out: one line of JSON: how many connections of each kind
were opened, and the most that were open at once. They hold OPEN connections at a time, open at most RATE a second, and
begin anew when they are turned away:

    garbage       random bytes, as many as are taken
    half-open     the greeting, and then nothing
    slow writer   the greeting, a byte every half second
    slow reader   the greeting, and a receive buffer that is never read
    huge length   the greeting, and a frame that says it has 2^62 bytes
    replay        what an opening with wrong keys said before, recorded on its way
    wrong keys    real handshakes of ZeroMQ with keys that nobody allows (KEYED endpoints, which try again and again)

The process takes the least priority for itself: real strangers compute on machines of their own, and what they do here
shall not be taken from the processes that they attack.
"""

import argparse
import contextlib
import json
import os
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from itertools import cycle

from ring_allreduce import KeyPair, Keys
from ring_allreduce.transport import Codec, Lane, Message, PeerAddress, TransportLimits, ZmqEndpoint

OPEN, RATE, KEYED = 500, 150, 8
GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
HUGE = GREETING + b"\x02" + struct.pack(">Q", 1 << 62)
GARBAGE = 1 << 16
SLOW_S = 0.5
STEP_S = 0.02
RECORD_S, SILENT_S = 60.0, 5.0
"""How long it may take until a handshake is recorded, and how long one that says nothing is listened to. With the least
priority it waits for whatever else this machine does."""
LEAST_PRIORITY = 19


def speaks_curve(port: int) -> bool:
    """Say whether a ZeroMQ socket that wants CURVE listens at the port."""
    answer = b""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
        connection.sendall(GREETING[:12])
        while len(answer) < 32 and (data := connection.recv(64)):
            answer += data
    return answer[:1] == b"\xff" and answer[12:32].rstrip(b"\0") == b"CURVE"


class Stranger:
    """One connection."""

    def __init__(self, kind: str, port: int, replayed: bytes) -> None:
        self.kind = kind
        self._socket = socket.socket()
        if kind == "slow reader":
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        self._socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            self._socket.connect(("127.0.0.1", port))
        said = {"garbage": os.urandom(GARBAGE), "huge length": HUGE + bytes(GARBAGE), "replay": replayed}
        self._left = said.get(kind, GREETING)
        self._next_s = 0.0

    def go_on(self, now_s: float) -> bool:
        """Say what can be said now; False when the connection is over."""
        try:
            if self._left and now_s >= self._next_s:
                sent = self._socket.send(self._left[:1] if self.kind == "slow writer" else self._left)
                self._left = self._left[sent:]
                self._next_s = now_s + (SLOW_S if self.kind == "slow writer" else 0.0)
            return self.kind == "slow reader" or self._socket.recv(4096) != b""
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False

    def close(self) -> None:
        """Be gone."""
        self._socket.close()


class Knock(Message, frozen=True, kw_only=True, tag="knock"):
    """It never arrives."""


@contextlib.contextmanager
def keyed(port: int) -> Iterator[None]:
    """An endpoint of the run's own transport that shakes hands with keys of its own, again and again."""
    pair, other = KeyPair.make(), KeyPair.make()
    keys = Keys(pair, {"stranger": pair.public, "member": other.public})
    limits = TransportLimits(linger_s=0.0)
    endpoint = ZmqEndpoint("stranger", codec=Codec([Knock]), token=bytes(16), keys=keys, limits=limits)
    try:
        endpoint.connect({"member": PeerAddress("127.0.0.1", port, port)})
        endpoint.send("member", Lane.PIPELINE, Knock())
        endpoint.poll(0.0)
        yield
    finally:
        endpoint.close()


def recorded(port: int) -> bytes:
    """What a handshake with wrong keys says to the port, recorded on its way. Raises RuntimeError for nothing."""
    said, end_s = b"", time.monotonic() + RECORD_S
    with socket.create_server(("127.0.0.1", 0)) as relay, keyed(relay.getsockname()[1]):
        relay.settimeout(RECORD_S)
        while len(said) <= len(GREETING) and time.monotonic() < end_s:
            here, _ = relay.accept()
            with here, socket.create_connection(("127.0.0.1", port), timeout=RECORD_S) as there:
                said = relayed(here, there)
    if len(said) <= len(GREETING):
        raise RuntimeError(f"nothing was recorded of a handshake with port {port}, but {len(said)} bytes")
    return said


def relayed(here: socket.socket, there: socket.socket) -> bytes:
    """Let two talk to each other until one of them ends or both are silent. Returns what `here` has said."""
    said = b""
    with contextlib.suppress(OSError):
        while ready := select.select([here, there], [], [], SILENT_S)[0]:
            for one in ready:
                data = one.recv(65536)
                if not data:
                    return said
                said += data if one is here else b""
                (there if one is here else here).sendall(data)
    return said


def attack(ports: list[int], seconds: float) -> dict[str, int]:
    """Attack, and return how many connections of each kind were opened, and the most at once."""
    replayed = recorded(ports[0])
    kinds = cycle(["garbage", "half-open", "slow writer", "slow reader", "huge length", "replay"])
    targets, opened, everyone = cycle(ports), Counter[str](), list[Stranger]()
    most, began_s = 0, time.monotonic()
    with contextlib.ExitStack() as stack:
        for port, _ in zip(targets, range(KEYED), strict=False):
            stack.enter_context(keyed(port))
            opened["wrong keys"] += 1
        made = 0
        while (now_s := time.monotonic()) < began_s + seconds:
            going_on = []
            for each in everyone:
                if each.go_on(now_s):
                    going_on.append(each)
                else:
                    each.close()
            everyone = going_on
            while len(everyone) < OPEN and made < (now_s - began_s) * RATE:
                made += 1
                with contextlib.suppress(OSError):
                    everyone.append(Stranger(next(kinds), next(targets), replayed))
                    opened[everyone[-1].kind] += 1
            most = max(most, len(everyone))
            time.sleep(STEP_S)
        for each in everyone:
            each.close()
    return {**opened, "at once": most}


def main() -> None:
    """Attack the ports that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ports", type=int, nargs="+")
    parser.add_argument("--seconds", type=float, required=True)
    asked = parser.parse_args()
    os.nice(LEAST_PRIORITY)
    print(json.dumps(attack(asked.ports, asked.seconds)), flush=True)


if __name__ == "__main__":
    main()
