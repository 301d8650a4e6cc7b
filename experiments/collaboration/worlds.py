"""Worlds of the kinds that the DeDLOC paper has, as links: the averaging plan beside the usual ways of averaging.

Rates are the solutions of the programs and the closed forms, in averagings per second while nothing but links limits:
no latency, no protocol, no loss. All peers that can compute do, so that every way averages the same gradients. Each
fixed way is given its best server, order or size of groups (ravnest/collaboration/fixed_ways.py). Sixty random worlds
of 3 to 12 peers, with slow and blocked pairs, are drawn beside the four. For the time of solving there are ten worlds
of 64 peers, half of whose pairs have limits of their own.
"""

import itertools
import math
import random
import time
from statistics import median

from experiments.harness.report import Claim, Panel, Part, Series, Table
from ravnest.collaboration.averaging_plan import best_plan, paper_bound, plan_for, relaxed_bound
from ravnest.collaboration.fixed_ways import fixed_ways
from ravnest.collaboration.links import Collaboration, PeerLinks

MBIT = 1e6 / 8
VECTOR_BYTES = 2 * 18e6
"""The gradient of 18 million parameters in float16, about that of ALBERT-large, which the paper trains."""

TARGET_BATCH = 4096.0
WAYS = ("ring", "one server", "equal parts", "direct", "groups")


def paper_worlds() -> dict[str, Collaboration]:
    """The four worlds. Links are symmetric, and sample rates (samples/s) are those of ordinary GPUs."""

    def peers(kind: str, count: int, mbit: float, samples: float) -> tuple[PeerLinks, ...]:
        return tuple(PeerLinks(f"{kind}{at}", mbit * MBIT, mbit * MBIT, samples) for at in range(count))

    volunteers = peers("volunteer", 8, 100.0, 12.0)
    hidden = {(one.name, other.name): 0.0 for one in volunteers for other in volunteers if one is not other}
    return {
        "equal servers": Collaboration(peers("server", 8, 1000.0, 30.0), VECTOR_BYTES, TARGET_BATCH),
        "workstations": Collaboration(peers("workstation", 8, 200.0, 20.0), VECTOR_BYTES, TARGET_BATCH),
        "hybrid": Collaboration(
            (*peers("server", 1, 1000.0, 30.0), *peers("workstation", 24, 40.0, 20.0)), VECTOR_BYTES, TARGET_BATCH
        ),
        "servers and NAT": Collaboration(
            (*peers("server", 2, 1000.0, 0.0), *volunteers), VECTOR_BYTES, TARGET_BATCH, hidden
        ),
    }


def random_world(seed: int, least: int = 3, most: int = 12) -> Collaboration:
    """A world of unequal, asymmetric links, some helpers, some slow pairs and some pairs that cannot connect."""
    draw = random.Random(seed)
    peers = [
        PeerLinks(
            f"p{at}",
            draw.choice((5, 20, 50, 100, 1000)) * MBIT * draw.uniform(0.7, 1.3),
            draw.choice((50, 100, 250, 1000)) * MBIT * draw.uniform(0.7, 1.3),
            0.0 if at and draw.random() < 0.15 else draw.uniform(2, 40),
        )
        for at in range(draw.randint(least, most))
    ]
    pairs: dict[tuple[str, str], float] = {}
    for one, other in itertools.combinations(peers, 2):
        if draw.random() < 0.1:  # a connection carries both directions, whoever has opened it
            rate = draw.choice((0.0, 10.0, 30.0)) * MBIT
            pairs[one.name, other.name] = pairs[other.name, one.name] = rate
    return Collaboration(tuple(peers), VECTOR_BYTES, TARGET_BATCH, pairs)


def measure(*, quick: bool) -> Part:
    """Solve all worlds, and compare."""
    worlds = paper_worlds()
    found = {name: _rates(given) for name, given in worlds.items()}
    drawn = [_rates(random_world(seed)) for seed in range(5 if quick else 60)]
    usable = [rates for rates in drawn if rates["paper"] > 0]
    every = list(found.values())
    to_ring = found["hybrid"]["ours"] / found["hybrid"]["ring"]
    to_best = min(map(_to_best, every))
    to_bound = min(rates["ours"] / rates["paper"] for rates in every)
    seconds, shares_of_relaxed = _solving(2 if quick else 10)
    return Part(
        name="worlds",
        title="Averaging plans over four worlds",
        claims=[
            Claim(
                "hybrid",
                "one fast and 24 slow peers: ours to the ring",
                "at least 1.9",
                f"{to_ring:.2f}",
                to_ring >= 1.9,
            ),
            Claim(
                "never worse",
                "ours to the best of the fixed ways, lowest of the four worlds",
                "at least 0.98",
                f"{to_best:.3f}",
                to_best >= 0.98,
            ),
            Claim(
                "bound",
                "ours to the paper's whole program with the same peers computing, lowest of the four worlds",
                "at least 0.95",
                f"{to_bound:.3f}",
                to_bound >= 0.95,
            ),
            Claim(
                "solving",
                "64 peers: seconds to choose who computes and who aggregates, longest of the worlds",
                "at most 1",
                f"{max(seconds):.2f}",
                max(seconds) <= 1.0,
            ),
        ],
        tables=[
            Table(
                "averagings per minute",
                ("world", "ours", *WAYS, "bound (whole program)"),
                [
                    (name, *(round(60 * rates[way], 2) for way in ("ours", *WAYS, "paper")))
                    for name, rates in found.items()
                ],
            ),
            Table(
                "who aggregates, in ours",
                ("world", "shares of the vector"),
                [(name, _shares_in_words(given)) for name, given in worlds.items()],
            ),
            Table(
                f"{len(usable)} random worlds",
                ("", "value"),
                [
                    ("ours to the best of the fixed ways, lowest", round(min(map(_to_best, usable)), 3)),
                    ("of them below 0.98", sum(_to_best(rates) < 0.98 for rates in usable)),
                    ("ours to the ring, median", round(median(_to_ring(rates) for rates in usable), 2)),
                    ("ours to the whole program, lowest", round(min(r["ours"] / r["paper"] for r in usable), 3)),
                ],
            ),
            Table(
                f"{len(seconds)} worlds of 64 peers",
                ("", "least", "most"),
                [
                    ("seconds to solve", round(min(seconds), 3), round(max(seconds), 3)),
                    (
                        "steps per second, of the bound with 0 ≤ c ≤ 1",
                        round(min(shares_of_relaxed), 3),
                        round(max(shares_of_relaxed), 3),
                    ),
                ],
            ),
        ],
        panels=[
            Panel(
                "four worlds",
                "",
                "averagings per minute",
                [Series(way, list(found), [60 * rates[way] for rates in found.values()]) for way in ("ours", *WAYS)],
            )
        ],
        notes=[
            " ".join((__doc__ or "").split("\n\n")[1].split()),
            f"{len(drawn) - len(usable)} of {len(drawn)} random worlds cannot average by any way, and are left out.",
        ],
    )


def _to_best(rates: dict[str, float]) -> float:
    best = max(rates[way] for way in WAYS)
    return rates["ours"] / best if best else math.inf


def _to_ring(rates: dict[str, float]) -> float:
    return rates["ours"] / rates["ring"] if rates["ring"] else math.inf


def _rates(given: Collaboration) -> dict[str, float]:
    computing = [place for place, peer in enumerate(given.peers) if peer.samples_per_s > 0]
    ours = plan_for(given, computing).averages_per_s
    return {"ours": ours, "paper": paper_bound(given, computing), **fixed_ways(given)}


def _shares_in_words(given: Collaboration) -> str:
    computing = [place for place, peer in enumerate(given.peers) if peer.samples_per_s > 0]
    shares = plan_for(given, computing).shares
    named = zip(given.peers, shares, strict=True)
    return ", ".join(f"{peer.name} {share:.0%}" for peer, share in named if share > 0.005)


def _solving(count: int) -> tuple[list[float], list[float]]:
    """Seconds to find the best plan of 64 peers, and its steps as a part of the relaxed bound."""
    seconds, parts = [], []
    for seed in range(count):
        draw = random.Random(seed)
        peers = random_world(1000 + seed, 64, 64).peers
        names = [peer.name for peer in peers]
        pairs = {
            (one, other): draw.uniform(1, 300) * MBIT
            for one in names
            for other in names
            if one != other and draw.random() < 0.5
        }
        given = Collaboration(peers, VECTOR_BYTES, 20_000.0, pairs)
        began_s = time.perf_counter()
        plan = best_plan(given)
        seconds.append(time.perf_counter() - began_s)
        if seed < 3:  # the bound takes many times as long as the plan
            parts.append(plan.steps_per_s / relaxed_bound(given))
    return seconds, parts
