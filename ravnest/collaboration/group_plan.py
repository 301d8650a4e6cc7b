"""Averaging in groups: who aggregates what where thousands of peers take part. Pure.

In one group of n peers everyone has n − 1 partners, and the program of averaging_plan.py has n² numbers. Here peers
form groups. In each group the members send their gradients to those of them who aggregate, the *owners* of parts of the
vector. For each part one group's owner, its *top*, adds up what the owners of all groups have, and returns the mean to
them, who return it to their groups. So a member has at most as many partners as its group has members, and an owner one
more in each other group.

With G groups let r_i be the bytes per second that peer i owns, and q_i ≤ r_i those of which it is the top. If T is the
vector's rate, c_i says whether i computes, n_i whether it needs the average, and its group has C and N of these:

    up     c_i (T − r_i) + r_i (N − n_i)  +  (r_i − q_i) + q_i (G − 1)  ≤  u_i
    down   n_i (T − r_i) + r_i (C − c_i)  +  (r_i − q_i) + q_i (G − 1)  ≤  d_i
    Σ r_i = T in each group,   Σ q_i = T over all                            maximise T

For a given T each line is about one peer alone. So the largest q_i is a concave, piecewise linear function of r_i, and
who owns what in a group follows by taking the segments of all its members in the order of their slopes: exactly, and
without a linear program. T is found by bisection. With one group it is the program of averaging_plan.py for given c.

In: links without pair limits, and who can only open connections outwards: those own nothing. Out: a plan, and which
peers own and top each place of the vector.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ravnest.collaboration.links import Collaboration
from ravnest.errors import InvalidInput

MOST_ALONE = 64
"""So many peers form one group."""

LEAST_LOSS = 0.01
"""Of plans that differ by less than this part of the steps the one in which peers have fewest partners is taken."""

MOST_PARTNERS = 400
"""Numbers of groups are tried in which an owner of equal peers speaks to no more than about so many: to its own group,
to one owner of each other group, and to as many tops of what it owns."""

LEAST_PIECE = 1e-12
"""Shorter pieces come from rounding."""

ALMOST = 1 - 1e-12
"""Sums of rates may miss what they are to be by rounding."""

STEPS = 50
"""Halvings of the interval in which T lies."""

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class GroupPlan:
    """Groups of peers, given by their places, and what each peer aggregates."""

    groups: tuple[tuple[int, ...], ...]
    computes: tuple[bool, ...]
    shares: Numbers
    """The part of the vector that each peer owns in its group; sum 1 in each group."""
    tops: Numbers
    """The part of which each is the top; sum 1 over all peers, and never more than its share."""
    averages_per_s: float
    steps_per_s: float
    """The lower of that and of the batches that those who compute fill per second."""


@dataclass(frozen=True)
class Layout:
    """The vector in pieces, each of which has one owner in each group, and one of these as its top."""

    bounds: Numbers
    """Where pieces begin and end, from 0 to 1: one more number than there are pieces."""
    owners: NDArray[np.int64]
    """By group and piece: the peer's place."""
    tops: NDArray[np.int64]
    """By piece: the peer's place."""


def best_group_plan(given: Collaboration, outgoing_only: Collection[int] = ()) -> GroupPlan:
    """Return the plan with fewest partners of those that are about the fastest.

    outgoing_only: places of peers that nobody can open a connection to. Raises InvalidInput for pair limits.
    """
    computes = _who_computes(given)
    count = len(given.peers)
    numbers = {2**power for power in range(count.bit_length()) if 2**power <= count} | {round(math.sqrt(count))}
    partners = {number: count / number + 2 * (number - 1) for number in (numbers if count > MOST_ALONE else {1})}
    fewest = sorted(partners, key=lambda number: (partners[number], number))
    tried = [number for number in fewest if number == fewest[0] or partners[number] <= MOST_PARTNERS]
    plans = [_planned(given, dealt(given, number, outgoing_only), computes, outgoing_only) for number in tried]
    best = max(plan.steps_per_s for plan in plans)
    return next(plan for plan in plans if plan.steps_per_s >= (1 - LEAST_LOSS) * best)


def group_plan(given: Collaboration, groups: Sequence[Sequence[int]], outgoing_only: Collection[int] = ()) -> GroupPlan:
    """Return the fastest plan of these groups, in which all who have a sample rate compute. Raises InvalidInput."""
    return _planned(given, groups, [peer.samples_per_s > 0 for peer in given.peers], outgoing_only)


def dealt(given: Collaboration, number: int, outgoing_only: Collection[int] = ()) -> list[list[int]]:
    """Deal peers out to so many groups, to and fro, those with the best links first: groups are alike."""
    apart = frozenset(outgoing_only)
    order = sorted(
        range(len(given.peers)),
        key=lambda at: (at in apart, -min(given.peers[at].up_bytes_per_s, given.peers[at].down_bytes_per_s), at),
    )
    groups: list[list[int]] = [[] for _ in range(number)]
    for position, place in enumerate(order):
        turn, at = divmod(position, number)
        groups[number - 1 - at if turn % 2 else at].append(place)
    return groups


def layout(plan: GroupPlan) -> Layout:
    """Lay the vector out. The tops' parts follow one another, group by group; a group's owners fill what is left."""
    top_spans: list[tuple[float, float, int]] = []
    spans: list[list[tuple[float, float, int]]] = []
    at = 0.0
    for group in plan.groups:
        own: list[tuple[float, float, int]] = []
        begins = at
        for place in group:
            if plan.tops[place] > 0:
                own.append((at, at + float(plan.tops[place]), place))
                at = own[-1][1]
        top_spans += own
        free, room = 0.0, begins
        for place in group:
            left = float(plan.shares[place] - plan.tops[place])
            while left > 0:
                if free >= room and free < at:  # the group's own tops lie here
                    free, room = at, 1.0
                taken = min(left, room - free) if room > free else left
                own.append((free, free + taken, place))
                free, left = free + taken, left - taken
        spans.append(sorted(own))
    bounds = np.unique(
        np.clip([0.0, 1.0, *(end for one in (top_spans, *spans) for span in one for end in span[:2])], 0, 1)
    )
    keep = np.concatenate([[True], np.diff(bounds) > LEAST_PIECE])
    keep[-1] = True
    bounds = bounds[keep]
    middles = (bounds[:-1] + bounds[1:]) / 2
    return Layout(bounds, np.array([_who(one, middles) for one in spans]), _who(sorted(top_spans), middles))


def _who(spans: Sequence[tuple[float, float, int]], middles: Numbers) -> NDArray[np.int64]:
    """Which of these spans, in their order, each place of the vector lies in."""
    begins = np.array([begin for begin, _, _ in spans])
    places = np.array([place for _, _, place in spans])
    found: NDArray[np.int64] = places[np.maximum(np.searchsorted(begins, middles, side="right") - 1, 0)]
    return found


def _who_computes(given: Collaboration) -> list[bool]:
    """Those with the best links, as many as make most steps where no more than all links together limits."""
    able = [at for at, peer in enumerate(given.peers) if peer.samples_per_s > 0]
    able.sort(key=lambda at: -min(given.peers[at].up_bytes_per_s, given.peers[at].down_bytes_per_s))
    up, down = (
        sum(rates) for rates in zip(*((p.up_bytes_per_s, p.down_bytes_per_s) for p in given.peers), strict=True)
    )
    best, chosen, samples = -1.0, 0, 0.0
    for number, at in enumerate(able, 1):
        peer = given.peers[at]
        samples += peer.samples_per_s
        links = min(
            peer.up_bytes_per_s, peer.down_bytes_per_s, min(up, down) / (2 * (number - 1)) if number > 1 else math.inf
        )
        steps = min(samples / given.target_batch, math.inf if number == 1 else links / given.vector_bytes)
        if steps > best:
            best, chosen = steps, number
    inside = set(able[:chosen])
    return [at in inside for at in range(len(given.peers))]


class _Links:
    """The links of all peers as arrays, and what their groups make of them."""

    def __init__(
        self,
        given: Collaboration,
        groups: Sequence[Sequence[int]],
        computes: Sequence[bool],
        outgoing_only: Collection[int],
    ) -> None:
        places = sorted(place for group in groups for place in group)
        if given.pair_bytes_per_s or places != list(range(len(given.peers))) or not all(groups):
            raise InvalidInput("groups are planned for links without pair limits, each peer in one group", key="groups")
        self.groups = [np.array(group) for group in groups]
        self.up = np.array([peer.up_bytes_per_s for peer in given.peers])
        self.down = np.array([peer.down_bytes_per_s for peer in given.peers])
        self.computes = np.array(computes, dtype=float)
        self.needs = np.array(
            [does or peer.keeps_state for does, peer in zip(computes, given.peers, strict=True)], dtype=float
        )
        self.owns = np.ones(len(given.peers), dtype=bool)
        self.owns[list(outgoing_only)] = False
        self.out_cost, self.in_cost = np.empty_like(self.up), np.empty_like(self.up)
        for group in self.groups:
            self.out_cost[group] = self.needs[group].sum() - self.needs[group] - self.computes[group]
            self.in_cost[group] = self.computes[group].sum() - self.computes[group] - self.needs[group]
        self.further = len(groups) - 2.0
        """What it costs to be the top instead of an owner, both ways."""
        if len(groups) > 1:
            self.out_cost += 1
            self.in_cost += 1

    def rates(self, total: float) -> tuple[Numbers, Numbers] | None:
        """(r, q) of the largest Σ q at which the vector travels at the rate `total`; None where it cannot."""
        spare_up, spare_down = self.up - self.computes * total, self.down - self.needs * total
        if bool((spare_up < 0).any() or (spare_down < 0).any()):
            return None
        last = np.minimum(_ratio(spare_up, self.out_cost), _ratio(spare_down, self.in_cost))
        last = np.where(self.owns, np.minimum(last, total), 0.0)  # beyond this r_i nothing is left for q_i
        if len(self.groups) == 1:
            owned = _filled(last, total)
            return None if owned is None else (owned, owned)
        whole = np.minimum(
            _ratio(spare_up, self.out_cost + self.further), _ratio(spare_down, self.in_cost + self.further)
        )
        whole = np.minimum(np.maximum(whole, 0.0), last)  # until here it can be the top of all that it owns
        owned, tops = np.zeros_like(last), np.zeros_like(last)
        for group in self.groups:
            found = self._of_group(group, total, whole[group], last[group], spare_up[group], spare_down[group])
            if found is None:
                return None
            owned[group], tops[group] = found
        return owned, tops

    def _of_group(
        self, group: NDArray[np.int64], total: float, whole: Numbers, last: Numbers, up: Numbers, down: Numbers
    ) -> tuple[Numbers, Numbers] | None:
        owned = _filled(whole, total)
        if owned is not None:
            return owned, owned.copy()
        if last.sum() < total * ALMOST or not self.further:
            return None
        # Beyond `whole` each further byte that it owns costs slope bytes of which it is the top; those who lose least
        # come first. Two lines bound q: they cross at most once.
        out, into, far = self.out_cost[group], self.in_cost[group], self.further
        differs = out != into
        cross = np.divide(up - down, out - into, out=np.full_like(up, np.inf), where=differs)
        cross = np.clip(cross, whole, last)
        owned = whole.copy()
        left = total - float(whole.sum())
        middle = (whole + cross) / 2
        first = np.where(up - out * middle < down - into * middle, out, into) / far
        middle = (cross + last) / 2
        second = np.where(up - out * middle < down - into * middle, out, into) / far
        segments = sorted(
            [(slope, number, end) for number, (slope, end) in enumerate(zip(first, cross, strict=True))]
            + [(slope, number, end) for number, (slope, end) in enumerate(zip(second, last, strict=True))]
        )
        for _, number, end in segments:
            taken = min(left, max(0.0, float(end - owned[number])))
            owned[number] += taken
            left -= taken
        tops = np.minimum(owned, np.minimum(up - out * owned, down - into * owned) / far)
        return owned, np.maximum(tops, 0.0)


def _planned(
    given: Collaboration, groups: Sequence[Sequence[int]], computes: Sequence[bool], outgoing_only: Collection[int]
) -> GroupPlan:
    links = _Links(given, groups, computes, outgoing_only)
    if links.computes.sum() == links.needs.sum() == 1:
        raise InvalidInput("one peer by itself averages with nobody", key="groups")
    samples = sum(peer.samples_per_s for peer, does in zip(given.peers, computes, strict=True) if does)
    low, high = 0.0, float(max(links.up.max(), links.down.max()))
    found: tuple[Numbers, Numbers] | None = None
    for _ in range(STEPS):
        middle = (low + high) / 2
        rates = links.rates(middle)
        if rates is not None and float(rates[1].sum()) >= middle * ALMOST > 0:
            low, found = middle, rates
        else:
            high = middle
    shape = tuple(tuple(group) for group in groups)
    if found is None:
        nothing = np.zeros(len(given.peers))
        return GroupPlan(shape, tuple(computes), nothing, nothing, 0.0, 0.0)
    owned, tops = found
    averages = low / given.vector_bytes
    steps = min(averages, samples / given.target_batch)
    filled = _filled(tops, low)
    assert filled is not None
    return GroupPlan(shape, tuple(computes), owned / low, filled / low, averages, steps)


def _ratio(over: Numbers, under: Numbers) -> Numbers:
    """over / under where under is above 0, else infinite."""
    return np.divide(over, under, out=np.full_like(over, np.inf), where=under > 0)


def _filled(most: Numbers, total: float) -> Numbers | None:
    """Numbers of the sum `total`, each at most what it may be, of as few as can be; None where that is too little."""
    order = np.argsort(-most, kind="stable")
    before = np.concatenate([[0.0], np.cumsum(most[order])[:-1]])
    if float(most.sum()) < total * ALMOST or total <= 0:
        return None
    found = np.zeros_like(most)
    found[order] = np.clip(total - before, 0.0, most[order])
    return found
