"""Where flat rings stop scaling: one round's averaging over the number of members, against the time between rounds.

A block passes 2(n − 1) hops one after another, and a hop carries n blocks twice but for two. So with n members of whom
hop i has the rate r_i, the latency l_i and the jitter j_i, V bytes, of which it carries v_i, in chunks of c bytes:

    round = max(  max_i v_i / r_i,                                 the narrowest hop, which is busy from begin to end
                  2 (n − 1) / n · Σ_i (c / r_i + l_i + j_i / 2)  )  the way of a chunk, which waits for nobody

the larger, since the hops work at the same time: the cycle time of a closed line of stations is that of its busiest
station or that of one piece's way around. The first does not grow with n, the second does.

That is so with equal blocks. A plan may divide a vector by its links' rates instead (ring_timing/shares.py). Then the
narrowest hop waits for large blocks to come around, and the first term is only a bound from below. So the formula is
judged with equal blocks, and beside it stands what the plan's own division takes.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from cluster_planner import Plan
from experiments.harness.report import Claim, Panel, Part, Series, Table
from experiments.scale.fleets import SAMPLES_PER_CLUSTER, SEGMENT_BYTES, home_plan
from ravnest.simulator.fleet import VirtualFleet, fleet_of_plan
from ravnest.simulator.run import VirtualRun
from ring_timing import hop_bytes

SEED = 1
SMALL_BYTES = SEGMENT_BYTES // 16
"""Whose rings end with their latencies, so that both terms are seen."""
ROUNDS = ((10, SEGMENT_BYTES), (30, SEGMENT_BYTES), (100, SEGMENT_BYTES), (300, SEGMENT_BYTES), (1000, SEGMENT_BYTES))
SMALL = ((100, SMALL_BYTES), (300, SMALL_BYTES))
QUICK = ((10, SEGMENT_BYTES), (30, SEGMENT_BYTES), (70, SMALL_BYTES))
BEYOND = ((3000, SEGMENT_BYTES), (10_000, SEGMENT_BYTES))
"""For which the formula is given alone: 2(n − 1)·n messages, two to three events each, 5·10⁸ for the larger one."""
WITHIN = 0.10

Row = tuple[int, float, float | None, float, float, float, float | None]
"""Members, MB, and in seconds: the round as simulated with equal blocks, the narrowest hop, a chunk's way; the round's
part of the time between two; the round with the plan's own blocks, where these are unequal."""


def run(*, quick: bool) -> Part:
    """One round of each number of members, each a cluster of its own."""
    rows = [row_of(members, n_bytes) for members, n_bytes in (QUICK if quick else ROUNDS + SMALL)]
    rows += [row_of(members, n_bytes, simulated=False) for members, n_bytes in (() if quick else BEYOND)]
    off = max(abs(row[2] / max(row[3], row[4]) - 1) for row in rows if row[2] is not None)
    gains = [row[2] / row[6] for row in rows if row[2] is not None and row[6] is not None]
    large = [row for row in rows if row[1] * 1e6 == SEGMENT_BYTES]
    return Part(
        name="rings",
        title="Where flat rings stop scaling",
        claims=[
            Claim(
                "formula",
                "a flat ring takes as long as its narrowest hop has bytes to send or as a chunk's way around twice "
                "takes, whichever is longer",
                f"within {WITHIN:.0%}",
                f"at most {off:.1%} off",
                off <= WITHIN,
            ),
            Claim(
                "blocks",
                "the time of a round with equal blocks over that with the blocks of the plan, where these are unequal",
                ">= 1, within 1%",
                f"{min(gains):.2f} to {max(gains):.2f} in {len(gains)} rings" if gains else "no such ring here",
                min(gains) >= 0.99 if gains else None,
            ),
        ],
        tables=[
            Table(
                "One round of one segment, in equal blocks",
                (
                    "members",
                    "MB",
                    "simulated, s",
                    "narrowest hop, s",
                    "a chunk's way, s",
                    "part of the time between rounds",
                    "simulated with the plan's unequal blocks, s",
                ),
                rows,
            )
        ],
        panels=[
            Panel(
                f"One round of one segment of {SEGMENT_BYTES / 1e6:g} MB",
                "members of the ring",
                "seconds",
                [
                    Series("simulated", [n for n, _, s, *_ in large if s], [s for _, _, s, *_ in large if s]),
                    Series("narrowest hop", [row[0] for row in large], [row[3] for row in large]),
                    Series("a chunk's way", [row[0] for row in large], [row[4] for row in large]),
                ],
                log_x=True,
                log_y=True,
            )
        ],
        notes=[
            f"Every member is a cluster of its own and makes {SAMPLES_PER_CLUSTER} samples between two rounds. "
            "The formula is derived in experiments/scale/rings.py. "
            + " ".join(ends_of_scaling(large))
            + " Rings of 3,000 and 10,000 members are not simulated: 2(n − 1)·n messages are 1.8·10⁷ and 2·10⁸, two to "
            "three events each, and each member remembers which chunks it had: some ten minutes and more than an hour, "
            "and gigabytes. A round of 10,000 nodes, in rings of 250, is simulated in `sizes`."
        ],
    )


def ends_of_scaling(rows: Sequence[Row]) -> list[str]:
    """Which ring is the first whose round is made of latencies, and whose round is longer than the time between two."""
    latent = _first(rows, lambda row: row[4] > row[3])
    over = _first(rows, lambda row: row[5] > 1)
    words = [] if latent is None else [f"The smallest ring here whose round is made of latencies has {latent}."]
    if over is None:
        return [*words, "No ring here takes as long as the time between rounds."]
    return [*words, f"The smallest here whose round is longer than the time between two has {over}: clusters wait."]


def _first(rows: Sequence[Row], holds: Callable[[Row], bool]) -> str | None:
    """The first row's members, and whether it is known from a simulation."""
    row = next((row for row in rows if holds(row)), None)
    return row and f"{row[0]:,} members ({'by the formula, not simulated' if row[2] is None else 'simulated'})"


def row_of(members: int, n_bytes: int, *, simulated: bool = True) -> Row:
    """One ring, by itself: the only round is the last one, so that no averaging slows the clusters down meanwhile."""
    plan = home_plan(members, 1, SEED, samples_per_cluster=10**9, segment_bytes=n_bytes)
    planned = fleet_of_plan(plan)
    equal = replace(planned, rings=tuple(replace(ring, shares=None) for ring in planned.rings))
    terms = by_formula(equal)
    simulated_s = one_round_s(equal) if simulated else None
    taken_s = max(terms) if simulated_s is None else simulated_s
    unequal_s = one_round_s(planned) if simulated and planned.rings[0].shares is not None else None
    return members, n_bytes / 1e6, simulated_s, *terms, taken_s / between_s(plan), unequal_s


def one_round_s(fleet: VirtualFleet) -> float:
    """From the round's opening to its commit, when every member has made one update."""
    virtual = VirtualRun(fleet, traced=False)
    virtual.run(1)
    return virtual.rounds.committed_s[-1] - virtual.rounds.opened_s[-1]


def by_formula(fleet: VirtualFleet) -> tuple[float, float]:
    """The two terms of the fleet's first ring: what its narrowest hop takes, and a chunk's way; seconds."""
    ring = fleet.rings[0]
    n = len(ring.members)
    hops = [fleet.links[pair] for pair in pairwise([*ring.members, ring.members[0]])]
    n_bytes = ring.elements * ring.element_bytes
    chunk_bytes = min(ring.chunk_elements * ring.element_bytes, n_bytes / n)
    carried = hop_bytes(n_bytes, n, ring.shares)
    narrowest_s = max(sent / hop.bytes_per_s for sent, hop in zip(carried, hops, strict=True))
    around_s = sum(chunk_bytes / hop.bytes_per_s + hop.latency_s + hop.jitter_s / 2 for hop in hops)
    return narrowest_s, 2 * (n - 1) / n * around_s


def between_s(plan: Plan) -> float:
    """Seconds in which the fleet makes the samples of one round."""
    return SAMPLES_PER_CLUSTER * len(plan.clusters) / plan.predicted.samples_per_s
