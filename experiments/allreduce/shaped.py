"""Links of home internet: how near does a ring come to what plain TCP carries over the same hops, and to arithmetic?

Two imitations. `wanlab`: namespaces joined by shaped links, the kernel's own TCP, baseline: plain sockets, all hops at
once, the same bytes per hop. The transport's own emulation, baseline: a plain stream of messages through the same
emulated links, and the arithmetic of the link.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from experiments.allreduce.crew import Crew, elapsed_s
from experiments.allreduce.lab import Lab
from experiments.allreduce.options import Options
from experiments.allreduce.ring_requests import FLOAT_BYTES, ring
from experiments.allreduce.timing import interleaved
from experiments.harness.report import Cell, Claim, Panel, Part, Series, Table, median, spread
from ring_timing import chunk_elements_for

OF_TCP, OF_LINK = 0.97, 0.90
LEAST_S = 1.0
RING, STREAM = "ring", "stream"


@dataclass(frozen=True)
class Case:
    """One setting: members, Mbit/s of each uplink and downlink, one-way delay."""

    members: int
    mbps: float
    one_way_s: float

    @property
    def bytes_per_s(self) -> float:
        return self.mbps * 1e6 / 8

    @property
    def n_bytes(self) -> int:
        """The vector: 4·n·rate·latency, but no less than a second of the link."""
        least = max(4 * self.members * self.bytes_per_s * self.one_way_s, LEAST_S * self.bytes_per_s)
        whole = FLOAT_BYTES * self.members
        return ceil(least / whole) * whole

    @property
    def hop_bytes(self) -> int:
        """What each member sends to the next in one all-reduce."""
        return 2 * (self.members - 1) * self.n_bytes // self.members

    @property
    def words(self) -> str:
        return f"{self.members} × {self.mbps:g} Mbit/s, {1e3 * self.one_way_s:g} ms"


LAB_CASES = tuple(
    Case(members, mbps, one_way_s)
    for members in (4, 6)
    for mbps, one_way_s in ((20, 0.005), (20, 0.1), (50, 0.03), (100, 0.005), (100, 0.1))
)
EMULATED_CASES = (Case(4, 20, 0.1), Case(4, 100, 0.005), Case(6, 50, 0.03), Case(6, 100, 0.1))
QUICK_CASES = (Case(4, 100, 0.005),)
Timings = dict[Case, dict[str, list[float]]]


def run(options: Options) -> Part:
    """Measure, and judge."""
    repeats = 1 if options.quick else 3
    emulated = {case: emulate(case, repeats) for case in (QUICK_CASES if options.quick else EMULATED_CASES)}
    claims, tables, panels = _judge("emulated links", "a plain stream through the same links", emulated)
    notes = [
        "A vector has max(4·n·rate·latency, one second of the link) bytes. Seconds run from the first member's start "
        "to the last one's "
        "end; ring and baseline take turns on connections that stay open. Of the link: 2(n−1)/n · bytes / rate over "
        "the ring's seconds."
    ]
    if options.wanlab is None or options.quick:
        why = options.why_no_lab or "not part of --quick"
        claims += [Claim("wanlab", "the same on namespaces with shaped links, against raw TCP", "", why, None)]
        notes.append(f"Left out: links shaped by wanlab: {why}.")
    else:
        shaped = in_lab(Lab, options, LAB_CASES, repeats)
        more_claims, more_tables, more_panels = _judge("wanlab", "raw TCP", shaped)
        claims, tables, panels = claims + more_claims, tables + more_tables, panels + more_panels
    return Part("shaped", "Shaped links", claims, tables, panels, notes)


def emulate(case: Case, repeats: int) -> dict[str, list[float]]:
    """Seconds of the ring and of a stream of as many bytes per hop, through the transport's own emulation."""
    names = [f"m{index}" for index in range(case.members)]
    links = {a: {b: (case.bytes_per_s, case.one_way_s) for b in names if b != a} for a in names}
    with Crew(names) as crew:
        crew.open("emulated", links=links)
        chunk = chunk_elements_for(case.bytes_per_s, FLOAT_BYTES, case.n_bytes)
        after = dict(zip(names, [*names[1:], names[0]], strict=True))

        def stream(n_bytes: int) -> float:
            piece = {"n_bytes": n_bytes, "piece_bytes": chunk * FLOAT_BYTES}
            return elapsed_s(
                crew.ask({n: {"do": "stream", "transport": "emulated", "to": after[n], **piece} for n in names})
            )

        rounds = Rounds(crew, "emulated", case)
        rounds.once(case.n_bytes // 8)
        work = {RING: lambda: rounds.once(case.n_bytes), STREAM: lambda: stream(case.hop_bytes)}
        return interleaved([RING, STREAM], lambda kind: work[kind](), repeats)


def in_lab(make: type[Lab], options: Options, cases: Sequence[Case], repeats: int) -> Timings:
    """The same in namespaces, against plain TCP."""
    assert options.wanlab is not None
    most = max(case.members for case in cases)
    names = [f"m{index}" for index in range(most)]
    timings: Timings = {}
    with make(options.wanlab, dict.fromkeys(names, (100.0, 100.0)), 0.0) as lab:
        for members in sorted({case.members for case in cases}):
            with Crew(names[:members], inside=lab.inside) as crew:
                crew.open("plain", hosts=lab.addresses)
                connect_streams(crew, lab.addresses)
                for case in (case for case in cases if case.members == members):
                    lab.change(dict.fromkeys(names, (case.mbps, case.mbps)), case.one_way_s)
                    timings[case] = _lab_case(crew, case, repeats + 2)
    return timings


def connect_streams(crew: Crew, addresses: Mapping[str, str]) -> None:
    """A plain TCP connection from each member to the next."""
    ports = crew.ask({name: {"do": "open_streams", "host": addresses[name]} for name in crew.names})
    after = dict(zip(crew.names, [*crew.names[1:], crew.names[0]], strict=True))
    crew.ask(
        {
            name: {"do": "connect_streams", "host": addresses[to], "port": ports[to]["port"]}
            for name, to in after.items()
        }
    )


def _lab_case(crew: Crew, case: Case, repeats: int) -> dict[str, list[float]]:
    rounds = Rounds(crew, "plain", case)
    work = {
        RING: lambda n_bytes: rounds.once(n_bytes),
        STREAM: lambda n_bytes: elapsed_s(
            crew.ask_all(do="transfer", n_bytes=2 * (case.members - 1) * n_bytes // case.members)
        ),
    }
    for kind in work:
        work[kind](case.n_bytes // 2)  # TCP learns the new link, on both connections
    return interleaved([RING, STREAM], lambda kind: work[kind](case.n_bytes), repeats)


class Rounds:
    """All-reduces over a crew's ring, each a ring of a new name."""

    def __init__(self, crew: Crew, transport: str, case: Case) -> None:
        self._crew = crew
        self._transport = transport
        self._case = case
        self._number = 0

    def once(self, n_bytes: int) -> float:
        """Seconds of one all-reduce of `n_bytes`."""
        self._number += 1
        case = self._case
        name = f"{case.words} {self._number}"
        request = ring(name, self._crew.names, n_bytes, bytes_per_s=case.bytes_per_s, latency_s=case.one_way_s)
        return elapsed_s(self._crew.ask_all(do="rounds", transport=self._transport, rings=[request], count=1))


def _judge(where: str, baseline: str, timings: Timings) -> tuple[list[Claim], list[Table], list[Panel]]:
    of_stream = {case: median(kinds[STREAM]) / median(kinds[RING]) for case, kinds in timings.items()}
    of_link = {case: case.hop_bytes / case.bytes_per_s / median(kinds[RING]) for case, kinds in timings.items()}
    base_of_link = {case: case.hop_bytes / case.bytes_per_s / median(kinds[STREAM]) for case, kinds in timings.items()}
    rows: list[list[Cell]] = [
        [
            case.words,
            case.n_bytes / 1e6,
            spread(kinds[RING]),
            spread(kinds[STREAM]),
            f"{of_stream[case]:.3f}",
            f"{of_link[case]:.3f}",
            f"{base_of_link[case]:.3f}",
        ]
        for case, kinds in timings.items()
    ]
    claims = [
        _least(f"{where}: of {baseline}", f"{where}: speed of the ring over that of {baseline}", OF_TCP, of_stream),
        _least(f"{where}: of the link", f"{where}: of 2(n−1)/n · bytes / slowest link", OF_LINK, of_link),
    ]
    columns = ["setting", "MB", "ring, s", f"{baseline}, s", "of it", "of the link", "it, of the link"]
    words = [case.words.replace(", ", "\n").replace(" Mbit/s", "") for case in timings]
    series = [
        Series(f"of {baseline}", words, list(of_stream.values())),
        Series("of the link", words, list(of_link.values())),
    ]
    panel = Panel(f"Shaped links: {where}", "members × Mbit/s, one-way delay", "share reached", series, target=OF_TCP)
    return claims, [Table(f"One all-reduce, {where}", columns, rows)], [panel]


def _least(name: str, statement: str, target: float, reached: Mapping[Case, float]) -> Claim:
    worst = min(reached, key=lambda case: reached[case])
    held = sum(value >= target for value in reached.values())
    measured = f"{reached[worst]:.3f} at worst ({worst.words}); {held} of {len(reached)} settings reach it"
    return Claim(name, f"{statement}, in each setting", f">= {target}", measured, reached[worst] >= target)
