"""The theorem of docs/theory.md in numbers: what a schedule and a problem promise. Pure; the names are the document's.

`sums` counts exactly, from a schedule, what the theorem needs of it: K_e, C_e, the error term S̄ and the stability term
D. `closed_form` bounds S̄ and D from C, T, Λ and h alone. `Promise` puts either together with a problem: the step, the
bound and its terms. Knows no run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.convergence.schedule import Floats, Ints, Schedule


@dataclass(frozen=True)
class Problem:
    """What is known of an objective. `sigma_sq`: of one update's gradient, by block; `gap`: f(start) − lower bound."""

    smoothness: float
    sigma_sq: tuple[float, ...]
    gap: float

    @property
    def whole_sigma_sq(self) -> float:
        return sum(self.sigma_sq)


@dataclass(frozen=True)
class Sums:
    """What the theorem needs of a schedule."""

    effective_updates: float
    """K_e = Σ ω: with equal clusters, updates of each."""
    effective_clusters: float
    """C_e = Σ ω / Σ ω²: with equal clusters, how many."""
    error: float
    """S̄: how many updates are missing or in excess, in square."""
    stability: float
    """D, in updates²: √D is the staleness that the step has to bear."""
    heaviest: float
    """max ω."""


def sums(schedule: Schedule, shares: Sequence[float]) -> Sums:
    """Exact, in time and memory of order N·U·S. `shares`: of the gradient's variance, by block; they add up to 1."""
    count = _Counts(schedule)
    weight = schedule.weight
    error_of_update = np.zeros(schedule.updates)
    stability = 0.0
    for stage, share in enumerate(shares):
        column = np.zeros(schedule.updates)
        for micro_batch in range(schedule.version.shape[1]):
            first, second = count.rows(micro_batch, stage)
            error_of_update += share * second / schedule.version.shape[1]
            column += count.columns(micro_batch, stage, weight * first / schedule.version.shape[1])
        stability = max(stability, float(np.max(column / weight, initial=0.0)))
    total = float(weight.sum())
    return Sums(
        effective_updates=total,
        effective_clusters=total / float((weight**2).sum()),
        error=float((weight * error_of_update).sum()) / total,
        stability=stability,
        heaviest=float(weight.max()),
    )


class _Counts:
    """Σ |α| and Σ α² over the updates j that a point misses or has in excess, by prefix sums."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._number = np.arange(schedule.updates)
        weight = schedule.weight
        self._all = [_prefix(weight), _prefix(weight**2)]
        self._places = [np.flatnonzero(schedule.cluster == c) for c in range(schedule.clusters)]
        """Of each cluster's updates in the order."""
        own = [weight[places] for places in self._places]
        self._missed = [[_prefix(each**power) for each in own] for power in (1, 2)]
        self._excess = [[_prefix((1 - each) ** power) for each in own] for power in (1, 2)]

    def _spans(self, micro_batch: int, stage: int) -> tuple[Ints, Ints, Ints]:
        """Of each update: where unmerged updates of all begin; own unmerged ones; own ones that were not applied."""
        schedule = self._schedule
        merged = schedule.merged[:, micro_batch, stage]
        begin = np.minimum(schedule.starts[merged + 1], self._number)
        return begin, schedule.ends[schedule.cluster, merged], schedule.version[:, micro_batch, stage]

    def rows(self, micro_batch: int, stage: int) -> tuple[Floats, Floats]:
        """(N,), (N,): Σ_j |α_kj| and Σ_j α_kj²."""
        schedule = self._schedule
        begin, own_begin, version = self._spans(micro_batch, stage)
        found = []
        for whole, missed, excess in zip(self._all, self._missed, self._excess, strict=True):
            total = whole[self._number] - whole[begin]
            for cluster, places in enumerate(self._places):
                low, mid, high = own_begin[places], version[places], schedule.update[places]
                total[places] -= missed[cluster][high] - missed[cluster][low]
                total[places] += missed[cluster][high] - missed[cluster][mid]
                total[places] += excess[cluster][mid] - excess[cluster][low]
            found.append(total)
        return found[0], found[1]

    def columns(self, micro_batch: int, stage: int, values: Floats) -> Floats:
        """(N,): Σ_k values_k |α_kj| for each j."""
        schedule = self._schedule
        begin, own_begin, version = self._spans(micro_batch, stage)
        others = _range_add(schedule.updates, begin, self._number, values)
        found = np.empty(schedule.updates)
        for places in self._places:
            low, mid, high, value = own_begin[places], version[places], schedule.update[places], values[places]
            own = _range_add(len(places), low, high, value)
            missed = _range_add(len(places), mid, high, value)
            excess = _range_add(len(places), low, mid, value)
            weight = schedule.weight[places]
            found[places] = weight * (others[places] - own + missed) + (1 - weight) * excess
        return found


def _prefix(values: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(values)])


def _range_add(length: int, begin: Ints, end: Ints, values: Floats) -> Floats:
    """(length,): values_i added to all places in [begin_i, end_i). Ends beyond `length` are cut."""
    change = np.zeros(length + 1)
    np.add.at(change, np.minimum(begin, length), values)
    np.subtract.at(change, np.minimum(np.maximum(end, begin), length), values)
    return np.cumsum(change)[:-1]


@dataclass(frozen=True)
class Steady:
    """C clusters that contribute the same each time: `contributions` updates of each to a round, lag at most Λ."""

    contributions: tuple[int, ...]
    staleness: int
    lag: int

    @property
    def weights(self) -> tuple[float, ...]:
        return tuple(h / sum(self.contributions) for h in self.contributions)


def closed_form(steady: Steady, updates: int) -> Sums:
    """Lemma 2: what S̄ and D are at most, whatever the order of events, after so many updates of the fleet."""
    weights, made = steady.weights, steady.contributions
    staleness, kept = steady.staleness, steady.lag + 1
    spanned = [kept + -(-staleness // h) for h in made]
    widest = max(spanned)
    row, column, error = 0.0, 0.0, 0.0
    for c, (w, h) in enumerate(zip(weights, made, strict=True)):
        others = [(v, k) for d, (v, k) in enumerate(zip(weights, made, strict=True)) if d != c]
        rest = (1 - w) * kept * h + widest * sum(v * k for v, k in others)
        row, column = max(row, staleness * w + rest), max(column, staleness * max(w, 1 - w) + rest)
        missing = staleness * w**2 + (1 - w) ** 2 * kept * h + spanned[c] * sum(v**2 * k for v, k in others)
        error += w * h * missing
    first = sum(w * h for w, h in zip(weights, made, strict=True))
    second = sum(w * w * h for w, h in zip(weights, made, strict=True))
    return Sums(updates * first / sum(made), first / second, error / first, row * column, max(weights))


@dataclass(frozen=True)
class Promise:
    """The theorem for one problem and one schedule."""

    problem: Problem
    sums: Sums

    @property
    def best_step(self) -> float:
        """What balances the way to go and the noise: √(2 F C_e / (L σ² K_e))."""
        p, s = self.problem, self.sums
        return math.sqrt(2 * p.gap * s.effective_clusters / (p.smoothness * p.whole_sigma_sq * s.effective_updates))

    @property
    def largest_step(self) -> float:
        """Where 2 L² γ² D + L γ max ω = 1."""
        s = self.sums
        if s.stability == 0:
            return 1 / (self.problem.smoothness * s.heaviest)
        root = math.sqrt(s.heaviest**2 + 8 * s.stability)
        return (root - s.heaviest) / (4 * s.stability * self.problem.smoothness)

    @property
    def step(self) -> float:
        """The theorem's γ."""
        return min(self.best_step, self.largest_step)

    def bound(self, step: float | None = None) -> float:
        """Of the mean squared gradient norm at the virtual iterates. Infinite where the step is too large for it."""
        step = self.step if step is None else step
        if step > self.largest_step * (1 + 1e-12):
            return math.inf
        return self.fresh(step) + self.stale(step)

    def fresh(self, step: float) -> float:
        """The terms that have nothing to do with staleness: the way to go, and the noise."""
        p, s = self.problem, self.sums
        way = 2 * p.gap / (step * s.effective_updates)
        return way + p.smoothness * step * p.whole_sigma_sq / s.effective_clusters

    def stale(self, step: float) -> float:
        """The term of staleness, lag and unequal progress: 2 L² γ² σ² S̄."""
        p = self.problem
        return 2 * p.smoothness**2 * step**2 * p.whole_sigma_sq * self.sums.error
