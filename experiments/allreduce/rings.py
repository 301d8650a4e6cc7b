"""Several rings at once: against one ring after another, against one parameter server; unequal against equal blocks.

Three clusters whose two stages are cut at different places: four segments, four rings of three members, and most stages
are in several of them (design §7).
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack

from experiments.allreduce.crew import Crew, elapsed_s
from experiments.allreduce.lab import Lab
from experiments.allreduce.options import Options
from experiments.allreduce.ring_requests import FLOAT_BYTES, ring
from experiments.allreduce.timing import interleaved
from experiments.harness.report import Cell, Claim, Panel, Part, Series, Table, median, spread
from ring_timing import chunk_elements_for, hops_from_links, round_s, shares_from_hops

UNITS = 12
SPANS = {"a0": (0, 4), "a1": (4, 12), "b0": (0, 6), "b1": (6, 12), "c0": (0, 8), "c1": (8, 12)}
SEGMENTS = ((0, 4), (4, 6), (6, 8), (8, 12))
SERVER = "server"
MBPS, ONE_WAY_S = 50.0, 0.02
UNIT_BYTES, QUICK_UNIT_BYTES = 1 << 19, 1 << 16
ALL_AT_ONCE, IN_TURN, ONE_SERVER = "rings at once", "one ring after another", "one parameter server"

NAMES = (*SPANS, SERVER)
SLOW_UP_MBPS = (100.0, 100.0, 100.0, 25.0)
"""Uplinks of four members; their downlinks have 100 Mbit/s."""
DOWN_MBPS = 100.0
EQUAL, SHARES = "equal blocks", "blocks by the links' rates"
SHARED_BYTES, QUICK_SHARED_BYTES = 8 << 20, 1 << 19


class Site:
    """Where it is measured: namespaces with links of their own, or the transport's emulation of each pair's link."""

    def __init__(self, options: Options) -> None:
        self._stack = ExitStack()
        self._shapes = 0
        self._lab: Lab | None = None
        if options.wanlab is not None and not options.quick:
            self._lab = self._stack.enter_context(Lab(options.wanlab, dict.fromkeys(NAMES, (MBPS, MBPS)), ONE_WAY_S))
        self.crew = self._stack.enter_context(Crew(NAMES, inside=self._lab.inside if self._lab else lambda _: ()))

    def shape(self, up_mbps: Mapping[str, float], down_mbps: float, one_way_s: float) -> str:
        """Give these members such links, and endpoints on them; the name under which workers know those."""
        self._shapes += 1
        transport = f"links {self._shapes}"
        if self._lab:
            self._lab.change({name: (up, down_mbps) for name, up in up_mbps.items()}, one_way_s)
            self.crew.open(transport, hosts=self._lab.addresses)
        else:
            links = {
                a: {b: (min(up, down_mbps) * 1e6 / 8, one_way_s) for b in NAMES if b != a} for a, up in up_mbps.items()
            }
            self.crew.open(transport, links=links)
        return transport

    def __enter__(self) -> "Site":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def run(options: Options) -> Part:
    """Measure, and judge."""
    with Site(options) as site:
        parallel = _parallel(site, options)
        shares, unequal, expected = _unequal(site, options)
    lab = options.wanlab is not None and not options.quick
    where = "wanlab" if lab else f"emulated links ({options.why_no_lab or 'without wanlab: --quick'})"
    note = (
        f"On {where}. Parallel rings: {len(SPANS)} stages of three clusters, each with {MBPS:g} Mbit/s up and down "
        f"and {1e3 * ONE_WAY_S:g} ms "
        f"one way, hold {UNITS} units of which clusters cut theirs at 4, 6 and 8: rings over units "
        f"{', '.join(map(str, SEGMENTS))}. The "
        "parameter server is a seventh machine with the same link; it adds and answers chunk by chunk."
    )
    if not lab:
        note += (
            " Emulated links are those of pairs: nobody's uplink is shared among its peers, which spares the server."
        )
    rows: list[list[Cell]] = []
    for seconds, ours in ((parallel, ALL_AT_ONCE), (unequal, SHARES)):
        rows += [[kind, spread(taken), median(taken) / median(seconds[ours])] for kind, taken in seconds.items()]
    links = ", ".join(f"{rate:g}" for rate in SLOW_UP_MBPS)
    return Part(
        name="rings",
        title="Parallel rings, unequal links",
        claims=[
            _faster(
                "parallel",
                "all rings at once against one after another: its time over ours",
                IN_TURN,
                ALL_AT_ONCE,
                parallel,
            ),
            _faster(
                "server",
                "all rings at once against one parameter server: its time over ours",
                ONE_SERVER,
                ALL_AT_ONCE,
                parallel,
            ),
            _faster(
                "unequal links",
                f"uplinks of {links} Mbit/s: equal blocks' time over that of shares",
                EQUAL,
                SHARES,
                unequal,
            ),
        ],
        tables=[Table("One averaging", ["what", "s, median (lowest–highest)", "× ours"], rows)],
        panels=[Panel("Rings over segments, and unequal links", "", "seconds", [_bars({**parallel, **unequal})])],
        notes=[
            note,
            f"Unequal links: four members with uplinks of {links} Mbit/s, downlinks of {DOWN_MBPS:g}; blocks "
            f"{', '.join(f'{share:.3f}' for share in shares)} of the vector, which by arithmetic are {expected:.2f} "
            "times as fast as equal ones.",
        ],
    )


def _parallel(site: Site, options: Options) -> dict[str, list[float]]:
    unit = (QUICK_UNIT_BYTES if options.quick else UNIT_BYTES) // FLOAT_BYTES
    chunk = chunk_elements_for(MBPS * 1e6 / 8, FLOAT_BYTES)
    spans = {name: (start * unit, stop * unit) for name, (start, stop) in SPANS.items()}
    chunks = [
        (first, min(first + chunk, stop * unit))
        for start, stop in SEGMENTS
        for first in range(start * unit, stop * unit, chunk)
    ]
    transport = site.shape(dict.fromkeys(NAMES, MBPS), MBPS, ONE_WAY_S)
    crew, number = site.crew, 0

    def rings(in_turn: bool) -> float:
        nonlocal number
        number += 1
        specs = [
            ring(
                f"{segment} {number}",
                [name for name, (a, b) in SPANS.items() if a <= segment[0] and segment[1] <= b],
                (segment[1] - segment[0]) * unit * FLOAT_BYTES,
                bytes_per_s=MBPS * 1e6 / 8,
                latency_s=ONE_WAY_S,
            )
            for segment in SEGMENTS
        ]
        request = {"do": "rounds", "transport": transport, "rings": specs, "count": 1, "in_turn": in_turn}
        return elapsed_s(crew.ask(dict.fromkeys(SPANS, request)))

    def server() -> float:
        requests: dict[str, dict[str, object]] = {
            name: {
                "do": "push",
                "transport": transport,
                "server": SERVER,
                "span": span,
                "chunks": [one for one in chunks if span[0] <= one[0] < span[1]],
            }
            for name, span in spans.items()
        }
        requests[SERVER] = {"do": "serve", "transport": transport, "clients": spans, "chunks": chunks}
        return elapsed_s(crew.ask(requests))

    work: dict[str, Callable[[], float]] = {
        ALL_AT_ONCE: lambda: rings(False),
        IN_TURN: lambda: rings(True),
        ONE_SERVER: server,
    }
    return _measured(work, options)


def _unequal(site: Site, options: Options) -> tuple[tuple[float, ...], dict[str, list[float]], float]:
    """The shares, seconds of either, and how much faster arithmetic says that shares are."""
    names = NAMES[: len(SLOW_UP_MBPS)]
    rates = hops_from_links([mbps * 1e6 / 8 for mbps in SLOW_UP_MBPS], [DOWN_MBPS * 1e6 / 8] * len(names))
    shares = shares_from_hops(rates)
    assert shares is not None  # so unequal are these links
    expected = round_s(1.0, rates) / round_s(1.0, rates, shares)
    n_bytes = QUICK_SHARED_BYTES if options.quick else SHARED_BYTES
    transport = site.shape(dict(zip(names, SLOW_UP_MBPS, strict=True)), DOWN_MBPS, 0.01)
    number = 0

    def once(chosen: tuple[float, ...] | None) -> float:
        nonlocal number
        number += 1
        request = ring(f"ring {number}", names, n_bytes, bytes_per_s=min(rates), latency_s=0.01, shares=chosen)
        asked = {"do": "rounds", "transport": transport, "rings": [request], "count": 1}
        return elapsed_s(site.crew.ask(dict.fromkeys(names, asked)))

    work = {SHARES: lambda: once(shares), EQUAL: lambda: once(None)}
    return shares, _measured(work, options), expected


def _measured(work: Mapping[str, Callable[[], float]], options: Options) -> dict[str, list[float]]:
    if not options.quick:
        for one in work.values():
            one()  # TCP learns the links
    return interleaved(list(work), lambda kind: work[kind](), 1 if options.quick else 3)


def _faster(name: str, statement: str, theirs: str, ours: str, seconds: Mapping[str, list[float]]) -> Claim:
    ratio = median(seconds[theirs]) / median(seconds[ours])
    return Claim(name, statement, "> 1×", f"{ratio:.2f}×", ratio > 1.0)


def _bars(seconds: Mapping[str, list[float]]) -> Series:
    taken = seconds.values()
    words = [kind.replace(" ", "\n") for kind in seconds]
    return Series("one averaging", words, [median(s) for s in taken], [min(s) for s in taken], [max(s) for s in taken])
