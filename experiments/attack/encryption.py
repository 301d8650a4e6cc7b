"""What encryption costs: time and processor time for each MiB, over links of 20, 100 and 1,000 Mbit/s.

Two endpoints of the transport in this process send messages of 1 MiB from one to the other, over a link that the
transport emulates, in clear with the run's token and encrypted with keys. Both ends' processor time counts.
"""

import sys
import time
from dataclasses import dataclass

import torch

from experiments.harness.report import Cell, Claim, Part, Table
from ring_allreduce import KeyPair, Keys
from ring_allreduce.transport import Codec, LinkShape, Message, Outbox, TransportLimits, ZmqEndpoint

MBITS = (20, 100, 1000)
MIB = 1 << 20
SECONDS = 10.0
"""For so long a link would carry what is sent."""
MOST_BYTES = 256 * MIB
LIMIT_S = 300.0
REPEATS = 3
MOST_LONGER = 0.03


class Piece(Message, frozen=True, kw_only=True, tag="piece"):
    """It carries 1 MiB."""


@dataclass(frozen=True)
class Sent:
    """One transfer."""

    bytes_per_s: float
    cpu_ms_per_mib: float


def transfer(mbit: float, pieces: int, *, encrypted: bool) -> Sent:
    """Send so many pieces over a link."""
    pairs = {name: KeyPair.make() for name in ("a", "b")}
    allowed = {name: pair.public for name, pair in pairs.items()}
    ends = {}
    try:
        for name, pair in pairs.items():
            other = "b" if name == "a" else "a"
            ends[name] = ZmqEndpoint(
                name,
                codec=Codec([Piece]),
                token=bytes(16),
                keys=Keys(pair, allowed) if encrypted else None,
                limits=TransportLimits(max_message_bytes=4 * MIB),
                links={other: LinkShape(bytes_per_s=mbit * 1e6 / 8, latency_s=0.0)},
                shared_memory=False,
            )
        ends["a"].connect({"b": ends["b"].address})
        ends["b"].connect({"a": ends["a"].address})
        numbers = torch.randn(MIB // 4)
        _sent(ends, numbers, 1)  # the handshake is not counted
        began_s, cpu_s = time.monotonic(), time.process_time()
        _sent(ends, numbers, pieces)
        seconds, cpu_s = time.monotonic() - began_s, time.process_time() - cpu_s
        return Sent(pieces * MIB / seconds, 1e3 * cpu_s / pieces)
    finally:
        for end in ends.values():
            end.close()


def _sent(ends: dict[str, ZmqEndpoint], numbers: torch.Tensor, pieces: int) -> None:
    outbox, arrived, end_s = Outbox(ends["a"]), 0, time.monotonic() + LIMIT_S
    for _ in range(pieces):
        outbox.put("b", Piece(), [numbers])
    while arrived < pieces:
        if time.monotonic() > end_s:
            raise RuntimeError(f"{arrived} of {pieces} MiB came within {LIMIT_S:.0f} s")
        outbox.flush()
        ends["a"].poll(0.0)
        arrived += len(ends["b"].poll(0.005))


def run(*, quick: bool) -> Part:
    """Send over each link, in clear and encrypted in turns."""
    torch.set_num_threads(1)
    rows: list[list[Cell]] = []
    longer = {}
    for mbit in MBITS:
        pieces = 2 if quick else max(4, min(MOST_BYTES, int(mbit * 1e6 / 8 * SECONDS)) // MIB)
        found: dict[bool, list[Sent]] = {False: [], True: []}
        for _ in range(1 if quick else REPEATS):
            for encrypted in found:
                found[encrypted].append(transfer(mbit, pieces, encrypted=encrypted))
        clear, closed = (_best(found[which]) for which in (False, True))
        longer[mbit] = clear.bytes_per_s / closed.bytes_per_s - 1
        rates = [8e-6 * each.bytes_per_s for each in (clear, closed)]
        rows.append([mbit, *rates, longer[mbit], clear.cpu_ms_per_mib, closed.cpu_ms_per_mib])
        print(f"  {mbit} Mbit/s: {longer[mbit]:+.1%}", file=sys.stderr, flush=True)
    worst = max(longer, key=lambda mbit: longer[mbit])
    claims = [
        Claim(
            "time",
            "time that encryption adds to a transfer over a link",
            f"<= {MOST_LONGER:.0%}",
            f"{longer[worst]:+.1%} at {worst} Mbit/s, the most",
            None if quick else longer[worst] <= MOST_LONGER,
        )
    ]
    columns = ["link, Mbit/s", "in clear, Mbit/s", "encrypted, Mbit/s", "longer", "in clear, ms of processor for a MiB"]
    columns.append("encrypted, ms of processor for a MiB")
    notes = [
        "Messages of 1 MiB between two endpoints of one process, both polled by one thread, over an emulated link. "
        "The fastest of the repeats and the least processor time count; both ends' time is in it."
    ]
    return Part("encryption", "What encryption costs", claims, [Table("Transfers", columns, rows)], notes=notes)


def _best(found: list[Sent]) -> Sent:
    return Sent(max(each.bytes_per_s for each in found), min(each.cpu_ms_per_mib for each in found))
