"""Rings of rings: how the members of a long ring form groups, and what a round over them sends and takes. Pure.

A flat ring of n members passes every chunk over 2(n − 1) hops, and a hop between two regions carries nearly twice the
vector. Here members that follow one another in passing order form groups. A vector is averaged in three steps, chunk by
chunk: within each group, then among the groups, then within each group again (ring_allreduce/ring/group_machine.py).

With g groups of m_k members the vector has B = max m_k blocks, and each block g cells. Block b of group k belongs to
its member b mod m_k, the *owner*. Cell j of block b passes

    around each group, ending at the owner         every hop of a group carries all blocks but the next member's own
    among the owners of b, starting at group j     B·g cells, of which a hop between two owners carries all but one
    among the owners again, finished
    around each group, starting at the owner

so that each member sends 2(n − 1)/n of the vector if all groups are equally large, as in a flat ring, and a chunk's
way is 2(m − 1) + 2(g − 1) hops. The m members of a group share what goes to the next group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from ravnest_errors import InvalidInput

PairLink = Callable[[int, int], tuple[float, float]]
"""Gives (bytes/s of one flow, one-way latency in s) from one member to another, by their places in passing order."""

LEAST_GAIN = 0.1
"""Groups have to save at least this part of a flat ring's round: their times are known less well."""


MOST_UNEQUAL = 4
"""The largest group is at most so many times as large as all are on average: else its members' blocks are small, and
those of small groups send many times what they do."""


@dataclass(frozen=True)
class Groups:
    """`members` of a ring, in passing order, in groups. `firsts`: the place of each group's first member, ascending;
    the last group goes on over the end of the order, up to the first of the first group."""

    members: int
    firsts: tuple[int, ...]

    def __post_init__(self) -> None:
        fits = all(0 <= first < self.members for first in self.firsts)
        if len(self.firsts) < 2 or not fits or list(self.firsts) != sorted(set(self.firsts)):
            raise InvalidInput(
                f"groups of {self.members} members begin at two or more ascending places below that: {self.firsts}"
            )

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Return how many members each group has."""
        ends = (*self.firsts[1:], self.firsts[0] + self.members)
        return tuple(end - first for first, end in zip(self.firsts, ends, strict=True))

    @cached_property
    def blocks(self) -> int:
        """Return the number of blocks of a vector: members of the largest group."""
        return max(self.sizes)

    @property
    def cells(self) -> int:
        """Return the number of pieces that pass through the groups each in its own way: cell j of block b is number
        b · len(firsts) + j."""
        return self.blocks * len(self.firsts)

    def member(self, group: int, place: int) -> int:
        """Return the member at a place of a group, which is counted modulo its size."""
        return (self.firsts[group] + place % self.sizes[group]) % self.members

    def place_of(self, member: int) -> tuple[int, int]:
        """Return (group, place in it) of a member."""
        before = [k for k, first in enumerate(self.firsts) if first <= member]
        group = before[-1] if before else len(self.firsts) - 1
        return group, (member - self.firsts[group]) % self.members

    def traffic(self, vector_bytes: float) -> dict[tuple[int, int], float]:
        """Return the bytes of a round from one member to another, of each pair of which one sends to the other."""
        sent: dict[tuple[int, int], float] = defaultdict(float)
        block, g = vector_bytes / self.blocks, len(self.firsts)
        for k, size in enumerate(self.sizes):
            owned = [len(range(place, self.blocks, size)) for place in range(size)]
            for place in range(size) if size > 1 else ():
                passed = 2 * self.blocks - owned[place] - owned[(place + 1) % size]
                sent[self.member(k, place), self.member(k, place + 1)] += passed * block
        for b in range(self.blocks):
            for k in range(g):
                sent[self.member(k, b), self.member((k + 1) % g, b)] += 2 * (g - 1) / g * block
        return dict(sent)


@dataclass(frozen=True)
class GroupedRound:
    """What one round over groups sends and takes, while nothing else is on the links."""

    groups: Groups
    sent_bytes: dict[tuple[int, int], float]
    """By (sender, receiver), as places in passing order."""
    sending_s: float
    """For how long the busiest member sends or receives, as if all its links were one uplink, or one downlink."""
    way_s: float
    """How long a chunk that waits for nobody travels: twice through the slowest group, twice around the groups."""
    slowest: int
    """The member that sends for the longest time."""

    @property
    def takes_s(self) -> float:
        """Return the seconds of a round."""
        return max(self.sending_s, self.way_s)


def grouped_round(groups: Groups, vector_bytes: float, chunk_bytes: float, pair: PairLink) -> GroupedRound:
    """Return one round of `vector_bytes` over groups, in chunks of at most `chunk_bytes`."""
    sent = groups.traffic(vector_bytes)
    piece = min(chunk_bytes, vector_bytes / groups.cells)
    out, into, hop_s = defaultdict[int, float](float), defaultdict[int, float](float), {}
    for (a, b), n_bytes in sent.items():
        rate, latency = pair(a, b)
        out[a] += n_bytes / rate
        into[b] += n_bytes / rate
        hop_s[a, b] = latency + piece / rate
    g = len(groups.firsts)
    inner = [
        sum(hop_s[groups.member(k, i), groups.member(k, i + 1)] for i in range(size)) * 2 * (size - 1) / size
        for k, size in enumerate(groups.sizes)
        if size > 1
    ]
    outer = [
        sum(hop_s[groups.member(k, b), groups.member((k + 1) % g, b)] for k in range(g)) * 2 * (g - 1) / g
        for b in range(groups.blocks)
    ]
    slowest = max(out, key=out.__getitem__)
    sending_s = max(out[slowest], *into.values())
    return GroupedRound(groups, sent, sending_s, max(inner, default=0.0) + max(outer), slowest)


def best_groups(members: int, vector_bytes: float, chunk_bytes: float, pair: PairLink) -> GroupedRound | None:
    """Return the round over groups that takes least, or None where there are too few members for any.

    Tried are cuts of the passing order at its dearest hops (regions), and groups of equal size (long ways) from the
    dearest hop on, of numbers of groups that double, and near the square root of the members.
    """
    if members < 4:
        return None
    tried = [
        grouped_round(groups, vector_bytes, chunk_bytes, pair) for groups in _candidates(members, vector_bytes, pair)
    ]
    return min(tried, key=lambda one: one.takes_s)


def _candidates(members: int, vector_bytes: float, pair: PairLink) -> list[Groups]:
    def dear(place: int) -> float:
        """The cost of the hop by which the member at `place` is reached."""
        rate, latency = pair((place - 1) % members, place)
        return latency + vector_bytes / members / rate

    cost = [dear(place) for place in range(members)]
    dearest = sorted(range(members), key=lambda place: (-cost[place], place))
    numbers = {2**i for i in range(1, members.bit_length()) if 2**i <= members // 2}
    numbers |= {
        n for n in (3, round(members**0.5), _regions([cost[place] for place in dearest])) if 2 <= n <= members // 2
    }
    found: dict[tuple[int, ...], None] = {}
    for n in sorted(numbers):
        found[tuple(sorted(dearest[:n]))] = None
        found[tuple(sorted({(dearest[0] + i * members // n) % members for i in range(n)}))] = None
    tried = [Groups(members, firsts) for firsts in found]
    return [groups for groups in tried if groups.blocks * len(groups.firsts) <= MOST_UNEQUAL * members]


def _regions(falling: Sequence[float]) -> int:
    """Return how many hops stand out: those before the largest fall from one cost to the next, as a ratio."""
    ratios = [before / after if after > 0 else float("inf") for before, after in pairwise(falling)]
    return 1 + max(range(len(ratios)), key=ratios.__getitem__)
