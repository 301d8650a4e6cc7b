"""Who computes and who aggregates which share of the gradient: the linear program of DeDLOC. Pure.

Diskin et al., "Distributed Deep Learning in Open Collaborations" (NeurIPS 2021). Peer i sends gradients to aggregator j
at the rate a_ij, and aggregator i sends averages back to peer j at the rate g_ij, all in bytes per second. With uploads
u, downloads d, pair limits t, sample rates s, whether peer i computes c_i, the batch B and the vector's P bytes:

    maximise  min( Σ s_i c_i / B,  min_i Σ_j g_ji / P )          steps per second, computing beside averaging
    g_ij ≤ a_ki  for all k that compute                          an aggregator returns what all have sent it
    Σ_{j≠i} (a_ij + g_ij) ≤ u_i,  Σ_{j≠i} (a_ji + g_ji) ≤ d_i,  a_ij + g_ij ≤ t_ij

Its outcome is all-reduce, a parameter server, helpers beside them or a mixture, whichever the links favour.

**In shares.** Who aggregates a part of the vector for some does so for all, so a plan is one rate r_i for each
aggregator: a_ki = r_i for each k that computes, and g_ij = r_i for each j that needs the average. The vector travels
T = Σ r_i bytes per second, and r_i / T is the share that i aggregates. This program has one variable a peer, and any
solution is a division of the vector that peers can carry out. The program above also allows that a part is aggregated
twice, at places from which different peers fetch it. `paper_bound` solves that one, as the bound of any plan with the
same c; `relaxed_bound` lets c_i be any number in [0, 1], so that no choice of c is better.

**A ring.** Both programs let gradients travel whole, and add up where they are aggregated. A ring hands on sums, and
needs no more than two partners for each peer. Where slow and blocked pairs leave no better shares, it is faster; then a
plan is a ring.

**Who computes.** With one more peer that computes, samples come faster and averages do not. Along a fixed order of
peers the best number is where the two rates cross, which bisection finds. Several orders are tried, and the best plan
is improved by single changes until none helps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from ravnest.collaboration.fixed_ways import ring_bound, ring_order, ring_rate
from ravnest.collaboration.links import Collaboration
from ravnest.errors import RavnestError

LEAST_GAIN = 1e-4
"""A change of who computes has to gain at least this part of the steps, and a ring this part of the averages."""

MOST_CHANGES = 24
"""Programs that are solved, at most, to improve the best of the orders by single changes."""


class ProgramFailed(RavnestError):
    """HiGHS could not solve a linear program that has a solution."""


@dataclass(frozen=True)
class AveragingPlan:
    """Who computes, which share of the vector each peer aggregates, and how fast that is. Peers are in their order."""

    computes: tuple[bool, ...]
    shares: tuple[float, ...]
    """The part of the vector that each peer aggregates; sum 1. Where a ring is faster, of equal blocks on it."""
    averages_per_s: float
    """Averagings per second while nothing but the links limits them; infinite where nothing has to travel."""
    steps_per_s: float
    """The lower of that and of the batches that those who compute fill per second."""
    ring: tuple[int, ...] = ()
    """The order (places) of a ring that is faster than any shares; empty where shares are."""


def best_plan(given: Collaboration) -> AveragingPlan:
    """Return the fastest plan that was found. Raises ProgramFailed.

    Where no gradient can be averaged at all (no links), steps_per_s is 0 unless one peer makes steps by itself.
    """
    able = [place for place, peer in enumerate(given.peers) if peer.samples_per_s > 0]
    best = shares_for(given, ())
    for order in _orders(given, able):
        best = max(best, _best_prefix(given, order), key=_worth)
    return max(_or_ring(given, _improved(given, able, best)), plan_for(given, able), key=_worth)


def shares_for(
    given: Collaboration, computing: Iterable[int], aggregating: Iterable[int] | None = None
) -> AveragingPlan:
    """Return the fastest plan in which just these peers (places) compute. `aggregating`: those that may aggregate;
    None: all. Raises ProgramFailed."""
    count = len(given.peers)
    computes = [False] * count
    for place in computing:
        computes[place] = True
    needs = [computes[place] or peer.keeps_state for place, peer in enumerate(given.peers)]
    samples = sum(peer.samples_per_s for peer, does in zip(given.peers, computes, strict=True) if does)
    if not any(computes):
        return AveragingPlan(tuple(computes), (1.0, *[0.0] * (count - 1)), 0.0, 0.0)
    rates = _share_rates(given, computes, needs, range(count) if aggregating is None else sorted(set(aggregating)))
    total = math.fsum(rates)
    if math.isinf(total):
        shares = [1.0 if rate else 0.0 for rate in rates]
    else:
        shares = [rate / total for rate in rates] if total > 0 else [1.0, *[0.0] * (count - 1)]
    averages = total / given.vector_bytes
    return AveragingPlan(tuple(computes), tuple(shares), averages, min(averages, samples / given.target_batch))


def plan_for(given: Collaboration, computing: Iterable[int]) -> AveragingPlan:
    """Return the plan of shares_for, or a ring where that is faster. Raises ProgramFailed."""
    return _or_ring(given, shares_for(given, computing))


def _or_ring(given: Collaboration, plan: AveragingPlan) -> AveragingPlan:
    """The plan, or a ring of the same peers where that gains LEAST_GAIN."""
    members = [place for place, peer in enumerate(given.peers) if plan.computes[place] or peer.keeps_state]
    least = plan.averages_per_s * (1 + LEAST_GAIN)
    if not any(plan.computes) or len(members) < 2 or ring_bound(given, members) <= least:
        return plan
    order = ring_order(given, members)
    averages = ring_rate(given, order)
    if averages <= least:
        return plan
    samples = sum(peer.samples_per_s for peer, does in zip(given.peers, plan.computes, strict=True) if does)
    shares = tuple(1 / len(order) if place in order else 0.0 for place in range(len(given.peers)))
    steps = min(averages, samples / given.target_batch)
    return AveragingPlan(plan.computes, shares, averages, steps, tuple(order))


def paper_bound(given: Collaboration, computing: Iterable[int]) -> float:
    """Return the averages per second of the paper's whole program where these peers compute: no shares exceed it."""
    chosen = set(computing)
    return _whole_program(given, [place in chosen for place in range(len(given.peers))])


def relaxed_bound(given: Collaboration) -> float:
    """Return steps per second that no shares exceed, whoever computes: the paper's whole program with 0 ≤ c_i ≤ 1."""
    return _whole_program(given, None)


def _worth(plan: AveragingPlan) -> tuple[float, float]:
    return plan.steps_per_s, plan.averages_per_s


def _orders(given: Collaboration, able: Sequence[int]) -> list[list[int]]:
    """Orders in which peers are added to those that compute: by samples, by links, and by both."""
    links = {place: min(given.peers[place].up_bytes_per_s, given.peers[place].down_bytes_per_s) for place in able}
    samples = {place: given.peers[place].samples_per_s for place in able}
    keys = (samples, links, {place: samples[place] * links[place] for place in able})
    orders = [sorted(able, key=lambda place, key=key: (-key[place], place)) for key in keys]  # type: ignore[misc]
    return [order for number, order in enumerate(orders) if order not in orders[:number]]


def _best_prefix(given: Collaboration, order: Sequence[int]) -> AveragingPlan:
    """The best plan in which the first k of `order` compute, by bisection: samples rise with k, averages fall."""
    best = shares_for(given, ())
    low, high = 1, len(order)
    while low <= high:
        middle = (low + high) // 2
        plan = shares_for(given, order[:middle])
        best = max(best, plan, key=_worth)
        if plan.averages_per_s > plan.steps_per_s:
            low = middle + 1
        else:
            high = middle - 1
    return best


def _improved(given: Collaboration, able: Sequence[int], plan: AveragingPlan) -> AveragingPlan:
    """Take peers in and out one at a time while that gains; the ones with the best and the worst links first."""
    tried, gained = 0, True
    while gained and tried < MOST_CHANGES:
        gained = False
        averaging = plan.averages_per_s <= plan.steps_per_s * (1 + LEAST_GAIN)
        inside = [place for place in able if plan.computes[place]]
        if averaging:  # the links limit: who computes least for what its link takes goes first
            changes = sorted(inside, key=lambda place: given.peers[place].samples_per_s)
        else:
            changes = sorted(
                (place for place in able if not plan.computes[place]),
                key=lambda place: -given.peers[place].samples_per_s,
            )
        for place in changes[: max(1, MOST_CHANGES // 2)]:
            tried += 1
            other = shares_for(given, [one for one in able if plan.computes[one] != (one == place)])
            if other.steps_per_s > plan.steps_per_s * (1 + LEAST_GAIN):
                plan, gained = other, True
                break
            if tried >= MOST_CHANGES:
                break
    return plan


def _share_rates(
    given: Collaboration, computes: Sequence[bool], needs: Sequence[bool], able: Sequence[int]
) -> list[float]:
    """Return r_i, in bytes per second: what each peer aggregates in the fastest plan; 0 for those that are not able."""
    count, computing, needing = len(computes), sum(computes), sum(needs)
    lone = [place for place in range(count) if computing - computes[place] == 0 and needing - needs[place] == 0]
    if lone:  # one peer makes all gradients and nobody else needs the average: nothing travels
        return [math.inf if place == lone[0] else 0.0 for place in range(count)]
    scale = max(max(peer.up_bytes_per_s, peer.down_bytes_per_s) for peer in given.peers) or 1.0
    rows = _Rows(count)
    for place, peer in enumerate(given.peers):
        # Σ_{j≠i} a_ij + g_ij: it sends each other aggregator's share, and returns its own to all that need it.
        sent = {other: 1.0 for other in able if other != place} if computes[place] else {}
        sent[place] = float(needing - needs[place])
        rows.add(sent, peer.up_bytes_per_s / scale)
        taken = {other: 1.0 for other in able if other != place} if needs[place] else {}
        taken[place] = float(computing - computes[place])
        rows.add(taken, peer.down_bytes_per_s / scale)
    for sender, receiver in _limited_pairs(given):
        carried = {receiver: 1.0} if computes[sender] else {}
        if needs[receiver]:
            carried[sender] = 1.0
        rows.add(carried, given.pair_limit(sender, receiver) / scale)
    bounds = [(0.0, None) if place in able else (0.0, 0.0) for place in range(count)]
    solved = _solve(np.full(count, -1.0), rows, bounds)
    return [max(0.0, float(rate)) * scale for rate in solved]


def _limited_pairs(given: Collaboration) -> list[tuple[int, int]]:
    """Pairs whose own limit is below what their two links allow."""
    place = {peer.name: number for number, peer in enumerate(given.peers)}
    pairs = []
    for (sender, receiver), rate in given.pair_bytes_per_s.items():
        one, other = given.peers[place[sender]], given.peers[place[receiver]]
        if sender != receiver and rate < min(one.up_bytes_per_s, other.down_bytes_per_s):
            pairs.append((place[sender], place[receiver]))
    return sorted(pairs)


def _whole_program(given: Collaboration, computes: Sequence[bool] | None) -> float:
    """The paper's program. Returns averages per second for a fixed c, or steps per second where c is relaxed (None).

    Variables: T, c_i, r_i (what all that compute send to i at least), a_ki, and g_ij. A peer that does not compute
    sends nothing: a_ki ≥ r_i − most · (1 − c_k), with a `most` that r_i never has to exceed.
    """
    count = len(given.peers)
    scale = max(max(peer.up_bytes_per_s, peer.down_bytes_per_s) for peer in given.peers) or 1.0
    fill = given.samples_per_s / given.target_batch * given.vector_bytes / scale  # T when samples alone limit
    most = 1.0 if computes is not None else min(fill, 1.0)
    pairs = [(one, other) for one in range(count) for other in range(count) if one != other]
    c0, r0 = 1, 1 + count
    a0 = {pair: r0 + count + number for number, pair in enumerate(pairs)}
    g0 = {pair: r0 + count + len(pairs) + number for number, pair in enumerate(pairs)}
    width = r0 + count + 2 * len(pairs)
    bounds: list[tuple[float, float | None]] = [(0.0, None if computes is not None else fill)]
    bounds += [(0.0, 1.0) if computes is None else (float(does), float(does)) for does in computes or [False] * count]
    bounds += [(0.0, most if computes is None else None)] * count + [(0.0, None)] * (2 * len(pairs))
    if computes is None:
        for place, peer in enumerate(given.peers):
            if not peer.samples_per_s:
                bounds[c0 + place] = (0.0, 0.0)
    elif sum(computes) == 1 and not any(peer.keeps_state and not computes[at] for at, peer in enumerate(given.peers)):
        return math.inf
    rows = _Rows(width)
    if computes is None:
        speed = {c0 + at: -peer.samples_per_s / given.samples_per_s for at, peer in enumerate(given.peers)}
        rows.add({0: 1.0 / fill, **speed}, 0.0)
    slack = most if computes is None else 0.0
    for sender, receiver in pairs:
        if computes is None or computes[sender]:
            # r_receiver − a ≤ most · (1 − c_sender)
            row = {r0 + receiver: 1.0, a0[sender, receiver]: -1.0}
            rows.add({**row, c0 + sender: slack} if slack else row, slack)
        rows.add({g0[sender, receiver]: 1.0, r0 + sender: -1.0}, 0.0)
    for place, peer in enumerate(given.peers):
        others = [other for other in range(count) if other != place]
        sent = {at[place, other]: 1.0 for at in (a0, g0) for other in others}
        rows.add(sent, peer.up_bytes_per_s / scale)
        rows.add({at[other, place]: 1.0 for at in (a0, g0) for other in others}, peer.down_bytes_per_s / scale)
        got = {g0[other, place]: -1.0 for other in others} | {r0 + place: -1.0, 0: 1.0}
        if peer.keeps_state or (computes is not None and computes[place]):
            rows.add(got, 0.0)
        elif computes is None:  # T ≤ what it gets, if it computes
            rows.add({**got, c0 + place: fill}, fill)
    for sender, receiver in _limited_pairs(given):
        carried = {a0[sender, receiver]: 1.0, g0[sender, receiver]: 1.0}
        rows.add(carried, given.pair_limit(sender, receiver) / scale)
    objective = np.zeros(width)
    objective[0] = -1.0
    solved = _solve(objective, rows, bounds)
    return float(solved[0]) * scale / given.vector_bytes


class _Rows:
    """The rows of A x ≤ b, gathered one by one. Rows without variables are left out."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._rows: list[int] = []
        self._columns: list[int] = []
        self._values: list[float] = []
        self.limits: list[float] = []

    def add(self, row: dict[int, float], limit: float) -> None:
        entries = [(column, value) for column, value in row.items() if value]
        if entries:
            self._rows += [len(self.limits)] * len(entries)
            self._columns += [column for column, _ in entries]
            self._values += [value for _, value in entries]
            self.limits.append(limit)

    @property
    def matrix(self) -> coo_array:
        shape = (len(self.limits), self.width)
        return coo_array((self._values, (self._rows, self._columns)), shape=shape)


def _solve(
    objective: np.ndarray[tuple[int], np.dtype[np.float64]],
    rows: _Rows,
    bounds: Sequence[tuple[float, float | None]],
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    found = linprog(objective, A_ub=rows.matrix.tocsr(), b_ub=rows.limits, bounds=bounds, method="highs")
    if not found.success:
        raise ProgramFailed(f"HiGHS: {found.message}")
    solution: np.ndarray[tuple[int], np.dtype[np.float64]] = found.x
    return solution
