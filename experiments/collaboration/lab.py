"""A hybrid world, scaled down and for real: one fast machine and seven slow ones on shaped links.

Each machine is a network namespace (wanlab): the fast one has 160 Mbit/s each way, a slow one 16, and 10 ms lie between
any two. The fast one is the backbone, which computes nothing; the slow ones are volunteers. All of them average a
million numbers as float32. An averaging of ours is a whole step, from one mean to the next, with the gradients of two
micro-batches of one sample and the optimizer's step at everyone: once with steps that wait for their average, so that
gradients and averages travel one after the other, and once with delayed steps, in which they travel at the same time,
as the linear program takes them to. A ring all-reduce of the same eight machines stands beside them, which computes
nothing. What the program promises is arithmetic on the links' rates, without headers, latency or encryption. Of n
machines it promises 2 (n − 1)/n times the ring's rate at most: 1.75 here, 1.92 for the 25 of the part worlds.
"""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from experiments.allreduce.crew import Crew, elapsed_s
from experiments.allreduce.lab import Lab, find
from experiments.allreduce.ring_requests import ring
from experiments.collaboration.beside_hivemind import Averagings, Place, collaboration
from experiments.harness.report import Claim, Part, Table, median
from ravnest.collaboration.averaging_plan import paper_bound
from ravnest.collaboration.fixed_ways import fixed_ways
from ravnest.collaboration.links import Collaboration, PeerLinks

MBIT = 1e6 / 8
FAST_MBIT, SLOW_MBIT, ONE_WAY_S = 160.0, 16.0, 0.01
SLOW, QUICK_SLOW = 7, 2
SIDE, QUICK_SIDE = 1000, 32
ROUNDS, WARM = 15, 6
SAMPLE_S = 0.05
"""A sample takes everyone so long. Else rates would be what the threads of one crowded machine make of them, and who
looks slow is asked for nothing."""

RINGS = 5
FAST, PORT = "fast", 7800
BYTES = 4


def measure(*, quick: bool, wanlab: str | None = None) -> Part:
    """In namespaces; `quick`, or without wanlab, the same on loopback, which says nothing of links."""
    program, why = find(wanlab)
    if quick:
        program, why = None, "not part of --quick"
    slow, side, rounds, warm = (QUICK_SLOW, QUICK_SIDE, 3, 2) if quick else (SLOW, SIDE, ROUNDS, WARM)
    names = [f"slow{at}" for at in range(slow)]
    n_bytes = BYTES * side * side
    with ExitStack() as stack:
        lab: Lab | None = None
        if program is not None:
            rates = {FAST: (FAST_MBIT, FAST_MBIT), **dict.fromkeys(names, (SLOW_MBIT, SLOW_MBIT))}
            lab = stack.enter_context(Lab(program, rates, ONE_WAY_S))
        place = Place() if lab is None else Place(lab.inside, FAST, names, f"{lab.addresses[FAST]}:{PORT}")
        ringed = rings([FAST, *names], n_bytes, lab)
        ours: dict[bool, Averagings] = {}
        for delayed in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                ours[delayed] = collaboration(
                    Path(folder),
                    slow,
                    "float32",
                    rounds,
                    side,
                    place=place,
                    delayed=delayed,
                    warm=warm,
                    sample_s=SAMPLE_S,
                )
    return part(ringed, ours, promised(names, n_bytes), why if lab is None else "")


def rings(names: Sequence[str], n_bytes: int, lab: Lab | None) -> list[float]:
    """Seconds of so many all-reduces, each a ring of its own; the first one, in which TCP learns the links, not."""
    with Crew(names, inside=lab.inside if lab else lambda _: ()) as crew:
        crew.open("plain", hosts=lab.addresses if lab else None)
        seconds = []
        for number in range(RINGS + 1):
            bytes_per_s, latency_s = (SLOW_MBIT * MBIT, ONE_WAY_S) if lab else (None, None)
            asked = ring(f"ring {number}", names, n_bytes, bytes_per_s=bytes_per_s, latency_s=latency_s)
            request = {"do": "rounds", "transport": "plain", "rings": [asked], "count": 1}
            seconds.append(elapsed_s(crew.ask(dict.fromkeys(names, request))))
    return seconds[1:]


def promised(names: Sequence[str], n_bytes: int) -> dict[str, float]:
    """Averagings per second by the links' rates alone: the program's bound, a ring, and one after the other."""
    fast, slow = FAST_MBIT * MBIT, SLOW_MBIT * MBIT
    peers = (
        PeerLinks(FAST, fast, fast, 0.0, keeps_state=True),
        *(PeerLinks(name, slow, slow, 1.0) for name in names),
    )
    given = Collaboration(peers, float(n_bytes), float(len(names)))
    bound = paper_bound(given, range(1, len(peers)))
    return {"bound": bound, "ring": fixed_ways(given)["ring"], "one after the other": bound / 2}


def part(ringed: Sequence[float], ours: dict[bool, Averagings], promise: dict[str, float], why: str) -> Part:
    """What was found. `ours`: by whether steps are delayed. `why`: links were not shaped; empty: they were."""
    rows, per_s = [], dict[str, float]()
    found = (
        ("ring all-reduce", ringed, promise["ring"]),
        ("ours, one after the other", ours[False].seconds, promise["one after the other"]),
        ("ours, delayed steps", ours[True].seconds, promise["bound"]),
    )
    for name, seconds, allowed in found:
        per_s[name] = 1 / median(seconds) if seconds else 0.0
        rows.append((name, round(60 * per_s[name], 2), round(60 * allowed, 2), round(per_s[name] / allowed, 3)))
    delayed, ring_s = per_s["ours, delayed steps"], per_s["ring all-reduce"]
    least = 0.95 * promise["bound"] / promise["ring"]
    failed = sum(one.failed for one in ours.values())
    steps = failed + sum(len(one.seconds) for one in ours.values())
    return Part(
        name="lab",
        title="A hybrid world on shaped links",
        claims=[
            Claim(
                "none failed",
                "steps of ours without all volunteers, of all",
                "0",
                f"{failed} of {steps}",
                failed == 0,
            ),
            Claim(
                "hybrid",
                "one fast and seven slow machines: averagings of delayed steps to those of a ring",
                f"at least {least:.2f}",
                why or f"{delayed / ring_s:.2f}",
                None if why else delayed / ring_s >= least,
            ),
            Claim(
                "bound",
                "averagings of delayed steps, of those of the linear program's bound",
                "at least 0.95",
                why or f"{delayed / promise['bound']:.3f}",
                None if why else delayed / promise["bound"] >= 0.95,
            ),
        ],
        tables=[
            Table(
                f"{len(ringed)} rings, {steps} steps of ours, of which {failed} lacked a volunteer",
                ("way", "averagings per minute", "the links allow", "of that"),
                rows,
            )
        ],
        notes=[" ".join((__doc__ or "").split("\n\n")[1].split())],
    )
