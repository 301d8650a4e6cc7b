"""The one rule by which a vector is divided over a ring, and the time that one round then takes. Pure arithmetic.

A run, the simulator and the planner's prediction all call `divide` with the same inputs, so that they agree on who
exchanges directly, on the size of chunks and on the shares of unequal blocks. With V bytes, n members, and for hop i
(from member i to member i + 1) the rate r_i in bytes/s and the one-way latency l_i in seconds:

    direct   everyone sends its whole vector to everyone: for two members always, where each part has to be seen, and
             for small vectors where
             (n − 1)·V / r + l  <  2·(n − 1)·(V / (n·r) + l),   r, l: the slowest rate and longest latency of all pairs
    ring     hop i carries v_i bytes (ring_timing/shares.py), and one round takes the larger of
             max_i v_i / r_i                                     the busiest hop
             2·(n − 1)/n · Σ_i (l_i + p / r_i)                   a chunk's way around, which waits for nobody

    groups   where the job asks for rings of rings, and they save a tenth of the ring's time (ring_timing/groups.py)

where p is the largest piece that travels at once: a chunk, or the largest block if that is smaller. The hops work at
the same time, so the round is a closed line of stations: its cycle time is that of the busiest station or that of one
piece's way around (measured in experiments/scale, part `rings`).

That is so with equal blocks. Where blocks are unequal, the busiest hop also waits, with nothing to send, while a large
block is on a hop before it. So rings of WALKED_FROM members and more are walked, block by block (`_walked_s`). In
smaller ones the wait is a few hundredths of a round, and searches compare thousands of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from ravnest_errors import InvalidInput
from ring_timing.groups import LEAST_GAIN, PairLink, best_groups
from ring_timing.layout import chunk_elements_for
from ring_timing.shares import hop_bytes, shares_from_hops

UNKNOWN_LATENCY_S = 3e-4
UNKNOWN_BYTES_PER_S = 5e8
"""Latency and rate of a hop that nobody measured: those between two processes of one machine, handling included."""

WALKED_FROM = 17
"""Rings of so many members and more are walked where their blocks are unequal."""


@dataclass(frozen=True)
class RingLinks:
    """The links between the n members of a ring, in passing order. A ring of one member has no hops and no pairs."""

    hop_bytes_per_s: tuple[float, ...] = ()
    """Rate of the hop from each member to the next, of a flow that has the links to itself; math.inf: no limit."""
    hop_latency_s: tuple[float, ...] = ()
    """One-way latency of each hop."""
    pair_bytes_per_s: float | None = None
    """The slowest rate between any two members, which a direct exchange would use; None: not known."""
    pair_latency_s: float | None = None
    """The longest latency between any two members; None: not known."""
    pair: PairLink | None = field(default=None, compare=False, repr=False)
    """The link between any two members; None: not known, so that no groups are made."""


@dataclass(frozen=True)
class Division:
    """How a vector is divided over a ring; every member has to use the same."""

    direct: bool
    """Everyone sends its whole part to everyone, instead of around the ring."""
    chunk_elements: int
    """Elements of one message."""
    shares: tuple[float, ...] | None = None
    """The part of the vector in each member's block, sum 1; None: equal blocks."""
    groups: tuple[int, ...] | None = None
    """A ring of rings: the places at which its groups begin (ring_timing.Groups); None: one ring."""


@dataclass(frozen=True)
class RingRound:
    """What one round around the ring carries and takes, while nothing else is on the links."""

    hop_bytes: tuple[float, ...]
    """Bytes over each hop."""
    hop_s: tuple[float, ...]
    """For how long each hop is busy."""
    way_s: float
    """How long a chunk that waits for nobody travels: around the ring as often as it goes."""
    stalls_s: float = 0.0
    """By how much later than `sending_s` the last has arrived where hops wait for large blocks; 0: they do not."""

    @property
    def sending_s(self) -> float:
        """The time in seconds for which the busiest hop is busy."""
        return max(self.hop_s, default=0.0)

    @property
    def takes_s(self) -> float:
        """Return the seconds of a round."""
        return max(self.sending_s + self.stalls_s, self.way_s)


def divide(
    elements: int, element_bytes: float, links: RingLinks, *, each: bool = False, hierarchical: bool = False
) -> Division:
    """Return the division of a vector of `elements` numbers, each of which takes `element_bytes` on the wire.

    `element_bytes` may be broken, since int8 travels with scales beside it. `each`: every member has to see each
    member's part, so that all exchange directly however long that takes. `hierarchical`: a ring of rings where that is
    faster. Raises InvalidInput for a rate that is not above 0.
    """
    vector_bytes, members = int(elements * element_bytes), max(1, len(links.hop_bytes_per_s))
    slowest = min(links.hop_bytes_per_s, default=None)
    chunk_elements = chunk_elements_for(slowest, int(element_bytes) or element_bytes, vector_bytes)
    if each:
        return Division(True, chunk_elements)
    chunk_bytes = chunk_elements * element_bytes
    direct = direct_is_faster(vector_bytes, members, links.pair_latency_s, links.pair_bytes_per_s)
    given = vector_bytes, chunk_bytes, links.hop_bytes_per_s, links.hop_latency_s
    shares = None if direct else shares_that_pay(*given)
    if hierarchical and links.pair is not None:
        grouped = best_groups(members, vector_bytes, chunk_bytes, links.pair)
        flat = ring_round(vector_bytes, chunk_bytes, shares, *given[2:])
        flat_s = _direct_s(vector_bytes, links) if direct else flat.takes_s
        if grouped is not None and grouped.takes_s < (1 - LEAST_GAIN) * flat_s:
            return Division(False, chunk_elements, groups=grouped.groups.firsts)
    return Division(direct, chunk_elements, shares)


def direct_is_faster(
    vector_bytes: int, members: int, latency_s: float | None = None, bytes_per_s: float | None = None
) -> bool:
    """Say whether a direct exchange, in which everyone sends its part to everyone, is faster than the ring.

    The slowest rate and the longest latency of all pairs decide; None stands for a link that was not measured.

        ring      2 (n − 1) · (V / n / rate + latency)        2 (n − 1) hops, one after another for small vectors
        direct    (n − 1) · V / rate + latency                one hop

    For two members the bytes are the same and the hops fewer, so they always exchange directly. Raises InvalidInput
    for impossible numbers.
    """
    latency = UNKNOWN_LATENCY_S if latency_s is None else latency_s
    rate = UNKNOWN_BYTES_PER_S if bytes_per_s is None else bytes_per_s
    if members < 1 or vector_bytes < 0 or not latency >= 0 or not rate > 0:
        raise InvalidInput(f"no ring has {members} members, {vector_bytes} bytes, {latency} s, {rate} bytes/s")
    if members <= 2:
        return True
    once = vector_bytes / rate
    ring_s = 2 * (members - 1) * (once / members + latency)
    return (members - 1) * once + latency < ring_s


def _direct_s(vector_bytes: int, links: RingLinks) -> float:
    """Return what a direct exchange takes over links of which all pairs are known."""
    assert links.pair_bytes_per_s is not None
    assert links.pair_latency_s is not None
    return (len(links.hop_bytes_per_s) - 1) * vector_bytes / links.pair_bytes_per_s + links.pair_latency_s


def shares_that_pay(
    vector_bytes: float, chunk_bytes: float, hop_bytes_per_s: Sequence[float], hop_latency_s: Sequence[float]
) -> tuple[float, ...] | None:
    """Return the shares of `shares_from_hops` where they make a round of `vector_bytes` shorter; else None: equal
    blocks.

    Latency is no part of the program that finds the shares. But a large block takes longer around the ring, hop after
    hop, in pieces of a chunk: where rounds are bound by that way and not by the busiest hop, blocks stay equal.
    """
    equal = ring_round(vector_bytes, chunk_bytes, None, hop_bytes_per_s, hop_latency_s)
    if equal.way_s >= equal.sending_s:
        return None  # unequal blocks make no way shorter, and this saves solving a linear program
    shares = shares_from_hops(tuple(hop_bytes_per_s))
    if shares is None:
        return None
    unequal = ring_round(vector_bytes, chunk_bytes, shares, hop_bytes_per_s, hop_latency_s)
    return shares if unequal.takes_s < equal.sending_s else None


def ring_round(
    vector_bytes: float,
    chunk_bytes: float,
    shares: Sequence[float] | None,
    hop_bytes_per_s: Sequence[float],
    hop_latency_s: Sequence[float],
) -> RingRound:
    """Return one round of `vector_bytes` around a ring, in chunks of at most `chunk_bytes` and blocks of these
    shares.
    """
    n = len(hop_bytes_per_s)
    carried = hop_bytes(vector_bytes, n, shares)
    piece = min(chunk_bytes, vector_bytes * (1 / n if shares is None else max(shares)))
    around_s = sum(hop_latency_s) + sum(piece / rate for rate in hop_bytes_per_s)
    hop_s = tuple(sent / rate for sent, rate in zip(carried, hop_bytes_per_s, strict=True))
    stalls_s = 0.0
    if shares is not None and n >= WALKED_FROM:
        blocks = tuple(vector_bytes * share for share in shares)
        walked_s = _walked_s(blocks, chunk_bytes, tuple(hop_bytes_per_s), tuple(hop_latency_s))
        stalls_s = max(0.0, walked_s - max(hop_s))
    return RingRound(carried, hop_s, 2 * (n - 1) / n * around_s, stalls_s)


@lru_cache(maxsize=4096)  # asked for twice of each ring: whether its blocks pay, and how long they take
def _walked_s(
    block_bytes: tuple[float, ...], chunk_bytes: float, hop_bytes_per_s: tuple[float, ...], latency_s: tuple[float, ...]
) -> float:
    """Return when the last of blocks of so many bytes has arrived.

    Block b is sent by member b + k in step k. That begins when the member has sent block b + 1, as its step before, and
    the first chunk has come from the member before it, and ends no sooner than a chunk's time after the last one has
    come.
    """
    count = len(block_bytes)
    sent_s, first_s, last_s = [0.0] * count, [0.0] * count, [0.0] * count
    for step in range(2 * (count - 1)):
        before_s = [*sent_s[1:], sent_s[0]]
        for block, n_bytes in enumerate(block_bytes):
            hop = (block + step) % count
            rate, late_s = hop_bytes_per_s[hop], latency_s[hop]
            began_s, chunk_s = max(before_s[block], first_s[block]), min(chunk_bytes, n_bytes) / rate
            sent_s[block] = ended_s = max(began_s + n_bytes / rate, last_s[block] + chunk_s)
            first_s[block], last_s[block] = began_s + chunk_s + late_s, ended_s + late_s
    return max(last_s)
