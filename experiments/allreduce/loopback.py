"""Loopback against gloo: the same vector sizes, as many processes with one thread of torch each, in turns.

RingReducer alone is what all_reduce is: the result is there, nobody has agreed on anything. Group.average is what a
user calls: vectors flattened and put back, and committed by the rendezvous. Beside both: without shared memory, as
between machines, and encrypted.
"""

import socket
from collections.abc import Mapping, Sequence
from math import exp, log
from pathlib import Path
from types import TracebackType

from experiments.allreduce.crew import Answer, Crew, elapsed_s
from experiments.allreduce.options import Options
from experiments.allreduce.ring_requests import FLOAT_BYTES, ring
from experiments.allreduce.timing import interleaved
from experiments.harness.report import Cell, Claim, Panel, Part, Series, Table, median, spread
from ring_allreduce import Rendezvous
from ring_allreduce.rounds import Patience

KIB, MIB = 1 << 10, 1 << 20
LEAST_BANDWIDTH, MEAN_BANDWIDTH, MOST_LATENCY = 1.1, 1.3, 0.6
GLOO, RING, GROUP = "gloo all_reduce", "RingReducer", "Group.average"
TCP, ENCRYPTED = "RingReducer, TCP", "RingReducer, CurveZMQ"
KINDS = (GLOO, RING, GROUP, TCP, ENCRYPTED)
TRANSPORTS = {RING: "shared", TCP: "tcp", ENCRYPTED: "curve"}
SIZES = tuple(KIB << shift for shift in range(0, 19, 2))
QUICK_SIZES = (KIB, 64 * KIB, MIB, 4 * MIB)
MEASURE_S, QUICK_MEASURE_S = 0.15, 0.05
MOST_COUNT = 300
CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")
WARM, CALIBRATING = 3, 5
"""WARM all-reduces go before those that are timed: connections and memory are those of a run that lasts, and two rounds
of a ring have memory of their own. CALIBRATING tell how many are timed: one says more about waking processes up."""

LARGE_BYTES, ENCRYPTED_UP_TO_BYTES = 16 * MIB, 64 * MIB
PATIENCE = Patience(silence_floor_s=60.0, stall_floor_s=90.0)
"""The group's: while one thing is measured, the others only wait, on a machine that may be busy."""

HOPS = {"shared": (3e9, 5e-4), "tcp": (1e9, 1e-4), "curve": (1e9, 1e-4)}
"""Bytes/s and seconds of a hop, by which chunks are sized, and vectors go directly or round a ring: their orders of
magnitude. Shared memory is read as fast as numbers are added, and a hop is two processes that wake each other."""


class Loopback:
    """`size` processes that hold endpoints and a Group, as many hold gloo, which no thread of ours disturbs."""

    def __init__(self, size: int) -> None:
        self.names = [f"m{index}" for index in range(size)]
        self.crew = Crew(self.names)
        self._rendezvous = Rendezvous(size, patience=PATIENCE)
        self._rings = 0
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.gloo = Crew(self.names)
        self.gloo.ask(
            {
                name: {"do": "join_gloo", "rank": rank, "size": size, "port": port}
                for rank, name in enumerate(self.names)
            }
        )
        self.crew.ask_all(do="join_group", rendezvous=self._rendezvous.address, size=size)
        self.crew.open("shared")
        self.crew.open("tcp", shared=False)
        self.crew.open("curve", encrypted=True)

    def __enter__(self) -> "Loopback":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.crew.close()
        self.gloo.close()
        self._rendezvous.close()

    def measure(self, what: str, n_bytes: int, count: int) -> dict[str, Answer]:
        """`count` all-reduces of `n_bytes`, one after another."""
        elements = n_bytes // FLOAT_BYTES
        if what == GLOO:
            return self.gloo.ask_all(do="gloo", elements=elements, count=count, warm=WARM)
        if what == GROUP:
            return self.crew.ask_all(do="average", elements=elements, count=count, warm=WARM)
        transport = TRANSPORTS[what]
        self._rings += 1
        name = f"{transport}-{self._rings}"
        bytes_per_s, latency_s = HOPS[transport]
        request = ring(name, self.names, n_bytes, bytes_per_s=bytes_per_s, latency_s=latency_s)
        return self.crew.ask_all(do="rounds", transport=transport, rings=[request], count=count, warm=WARM)

    def equal(self) -> bool:
        """Whether all members hold the same bytes after the last measurement of a ring."""
        answers = self.crew.ask_all(do="digests", transport=TRANSPORTS[RING])
        return len({str(answer["digests"]) for answer in answers.values()}) == 1


Timings = dict[tuple[int, int], dict[str, list[float]]]
"""(processes, bytes) → what was measured → seconds of one all-reduce, one for each repeat. Also CPU seconds."""


def run(options: Options) -> Part:
    """Measure, and judge."""
    quick, timings, cpu = options.quick, Timings(), Timings()
    idle, unequal = 0.0, []
    for size in (2,) if quick else (2, 3, 4):
        with Loopback(size) as processes:
            idle = max(idle, *(answer["cpu_s"] for answer in processes.crew.ask_all(do="cpu", seconds=1.0).values()))
            for n_bytes in QUICK_SIZES if quick else SIZES:
                timings[size, n_bytes], cpu[size, n_bytes] = _point(processes, n_bytes, quick)
                if not processes.equal():
                    unequal.append(f"{size} processes, {n_bytes} bytes")
    ratios = {point: median(kinds[GLOO]) / median(kinds[RING]) for point, kinds in timings.items()}
    return Part(
        name="loopback",
        title="Loopback: against torch.distributed gloo",
        claims=_claims(ratios, unequal),
        tables=[_table(timings, cpu)],
        panels=_panels(timings),
        notes=[
            f"Time is that of one float32 all-reduce of several in sequence after {WARM} that are not counted, from "
            "the first member's start to the last one's end; median (lowest–highest) of repeats that take turns: "
            "gloo, ours, gloo, ours. CPU is that of one member, all threads. gloo has processes of its own; one of "
            f"ours holds three endpoints and a Group, and uses at most {idle:.0%} of a core while all are idle.",
            "RingReducer and Group.average exchange their numbers by shared memory (transport/shared/channel.py), "
            "RingReducer's vector lies in memory that its endpoint lends (transport/shared/memory.py). The TCP "
            "connections of the other two use reno (transport/zmq/lanes.py); gloo's keep the system's congestion "
            f"control, here {CONGESTION_CONTROL.read_text().strip()}.",
            "× gloo: gloo's median time over ours, above 1 is faster. Bus bandwidth is 2(n−1)/n · bytes / seconds.",
        ],
    )


def _point(processes: Loopback, n_bytes: int, quick: bool) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds, and CPU seconds of a member."""
    kinds = [kind for kind in KINDS if kind != ENCRYPTED or n_bytes <= ENCRYPTED_UP_TO_BYTES]
    counts = {}
    for kind in kinds:
        once_s = elapsed_s(processes.measure(kind, n_bytes, CALIBRATING)) / CALIBRATING
        counts[kind] = max(1, min(MOST_COUNT, int((QUICK_MEASURE_S if quick else MEASURE_S) / once_s)))
    cpu: dict[str, list[float]] = {kind: [] for kind in kinds}

    def one(kind: str) -> float:
        answers = processes.measure(kind, n_bytes, counts[kind])
        cpu[kind].append(sum(answer["cpu_s"] for answer in answers.values()) / len(answers) / counts[kind])
        return elapsed_s(answers) / counts[kind]

    return interleaved(kinds, one, 3 if quick or n_bytes > LARGE_BYTES else 5), cpu


def _claims(ratios: Mapping[tuple[int, int], float], unequal: Sequence[str]) -> list[Claim]:
    large = {point: ratio for point, ratio in ratios.items() if point[1] >= MIB}
    small = {point: 1.0 / ratio for point, ratio in ratios.items() if point[1] < MIB}
    mean = exp(sum(map(log, large.values())) / len(large))
    least, slowest = min(large, key=lambda point: large[point]), max(small, key=lambda point: small[point])
    return [
        Claim(
            "bandwidth",
            "RingReducer's bandwidth over gloo's, geometric mean over all process counts and sizes from 1 MiB",
            f">= {MEAN_BANDWIDTH}×",
            f"{mean:.2f}×",
            mean >= MEAN_BANDWIDTH,
        ),
        Claim(
            "least bandwidth",
            "the same, at the worst point",
            f">= {LEAST_BANDWIDTH}×",
            f"{large[least]:.2f}× ({_words(least)})",
            large[least] >= LEAST_BANDWIDTH,
        ),
        Claim(
            "latency",
            "RingReducer's time over gloo's below 1 MiB, at the worst point",
            f"<= {MOST_LATENCY}×",
            f"{small[slowest]:.2f}× ({_words(slowest)})",
            small[slowest] <= MOST_LATENCY,
        ),
        Claim(
            "equal",
            "over real sockets, too, all members hold the same bytes",
            "all points",
            f"{len(ratios) - len(unequal)} of {len(ratios)}{': not ' if unequal else ''}{'; '.join(unequal)}",
            not unequal,
        ),
    ]


def _table(timings: Timings, cpu: Timings) -> Table:
    rows: list[list[Cell]] = []
    for point, kinds in timings.items():
        size, n_bytes = point
        bus = 2 * (size - 1) / size * n_bytes / 2**30
        for kind, seconds in kinds.items():
            took = spread([1e3 * one for one in seconds])
            cpu_ms = 1e3 * median(cpu[point][kind])
            ratio = median(kinds[GLOO]) / median(seconds)
            rows.append([size, bytes_words(n_bytes), kind, took, cpu_ms, bus / median(seconds), f"{ratio:.2f}"])
    columns = ["processes", "vector", "what", "ms, median (lowest–highest)", "CPU ms", "bus GiB/s", "× gloo"]
    return Table("One all-reduce", columns, rows)


def _panels(timings: Timings) -> list[Panel]:
    sizes = sorted({size for size, _ in timings})
    panels = []
    for kind in KINDS[1:]:
        series = []
        for size in sizes:
            points = {n: by_kind for (of, n), by_kind in timings.items() if of == size and kind in by_kind}
            pairs = {n: _ratios(by_kind, kind) for n, by_kind in points.items()}
            series.append(
                Series(
                    f"{size} processes",
                    list(pairs),
                    [median(points[n][GLOO]) / median(points[n][kind]) for n in pairs],
                    [min(ratio) for ratio in pairs.values()],
                    [max(ratio) for ratio in pairs.values()],
                )
            )
        title = f"{kind}: speed over gloo (loopback)"
        panels.append(Panel(title, "bytes of the vector", "× gloo", series, log_x=True, log_y=True, target=1.0))
    return panels


def _ratios(by_kind: Mapping[str, Sequence[float]], kind: str) -> list[float]:
    """Of neighbours in time."""
    return [theirs / ours for theirs, ours in zip(by_kind[GLOO], by_kind[kind], strict=True)]


def bytes_words(n_bytes: int) -> str:
    """`64 KiB`, `16 MiB`."""
    return f"{n_bytes // MIB} MiB" if n_bytes >= MIB else f"{n_bytes // KIB} KiB"


def _words(point: tuple[int, int]) -> str:
    return f"{point[0]} processes, {bytes_words(point[1])}"
