"""Trainings along a schedule: SGD on an objective, with the very weights that each gradient of the run used.

Live weights are rebuilt from what the schedule says: base of the last merged round, plus the own progress since.
Many runs go through one schedule at once (seeds, and step sizes for several K); a run that is long enough leaves.
Gradients that do not need each other are computed together. What it measures: the mean of ‖∇f‖², weighted as in the
theorem, at the virtual iterates z and at the points x where gradients were computed, by stratified samples of k.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from experiments.convergence.objectives import Objective
from experiments.convergence.schedule import Floats, Ints, Schedule

Merge = Literal["progress", "naive"]
PROBES = 256
"""Updates of each run, about, at which its gradient norm is measured."""
_TOGETHER = 64
"""Gradients that are computed at once, at most."""
DIVERGED = 1e12


@dataclass(frozen=True)
class Trained:
    """Of each seed: what was measured. Infinite where a run diverged."""

    updates: int
    virtual: Floats
    """(seeds,): mean ‖∇f(z)‖²."""
    live: Floats
    """(seeds,): mean ‖∇f(x)‖² at the points where gradients were computed."""


@dataclass(frozen=True)
class Run:
    """`seeds` trainings with one step, for the first `updates` of the schedule."""

    updates: int
    step: float
    seeds: int = 10


def train(
    objective: Objective,
    blocks: Sequence[slice],
    schedule: Schedule,
    runs: Sequence[Run],
    *,
    seed: int = 0,
    merge: Merge = "progress",
    progress: Callable[[int, int], None] | None = None,
) -> list[Trained]:
    """All runs along one schedule. They share its order of events; chance is their own."""
    return _Replay(objective, blocks, schedule, runs, seed, merge).all(progress)


def strata(updates: int) -> Ints:
    """Edges of the stretches of updates of which one each is measured: even ones, and shorter ones at the beginning.

    All seeds are measured at the same updates. Where gradients still fall, within a few updates, an even sample is left
    to chance, and to one that no interval over seeds knows of.
    """
    if updates <= PROBES:
        return np.arange(updates + 1, dtype=np.int64)
    edges = [np.linspace(0, updates, PROBES // 2 + 1), np.geomspace(1, updates, PROBES // 2 + 1)]
    return np.unique(np.round(np.concatenate(edges)).astype(np.int64))


@dataclass
class _Measured:
    virtual: list[tuple[float, Floats]] = field(default_factory=list)
    """(weight, (seeds,) squared norms)"""
    live: list[tuple[float, Floats]] = field(default_factory=list)


class _Replay:
    def __init__(
        self,
        objective: Objective,
        blocks: Sequence[slice],
        schedule: Schedule,
        runs: Sequence[Run],
        seed: int,
        merge: Merge,
    ) -> None:
        self._objective, self._blocks, self._schedule, self._merge = objective, blocks, schedule, merge
        self._runs = list(runs)
        self._random = np.random.default_rng(seed)
        self._active = sorted(range(len(runs)), key=lambda index: -runs[index].updates)
        self._columns = np.concatenate([np.full(runs[index].seeds, index) for index in self._active])
        self._step = np.asarray([runs[index].step for index in self._columns])
        self._measured = [_Measured() for _ in runs]
        self._probes = self._choose_probes()
        self._weight = schedule.weight
        self._places = [np.flatnonzero(schedule.cluster == c) for c in range(schedule.clusters)]
        made = np.diff(schedule.ends, axis=1)
        self._counts = np.concatenate(
            [np.zeros((schedule.clusters, 1)), made / np.maximum(made.sum(axis=0), 1)], axis=1
        )
        oldest = schedule.update - schedule.ends[schedule.cluster, schedule.merged.min(axis=(1, 2))]
        self._kept = int(oldest.max()) + int(made.max()) + 2 * _TOGETHER + 2
        """Prefixes of each cluster that are kept."""
        behind = schedule.round - schedule.merged.min(axis=(1, 2))
        self._kept_rounds = int(behind.max()) + 2
        width, dimensions = len(self._columns), len(objective.start)
        self._path = np.zeros((schedule.clusters, self._kept, width, dimensions))
        """[c, u]: what cluster c has added to its weights by its first u updates, merges apart."""
        self._base = np.zeros((schedule.clusters, self._kept_rounds, width, dimensions))
        self._base[:, 0] = objective.start
        """[c, m]: live weights are base + path, after m merges."""
        self._anchor = np.tile(objective.start, (width, 1))

    def all(self, progress: Callable[[int, int], None] | None) -> list[Trained]:
        schedule = self._schedule
        last = max(run.updates for run in self._runs)
        newest_version = [schedule.version[places].max(axis=(1, 2)) for places in self._places]
        newest_merge = [schedule.merged[places].max(axis=(1, 2)) for places in self._places]
        newest_merge = [np.maximum.accumulate(each) for each in newest_merge]
        done = np.zeros(schedule.clusters, dtype=np.int64)
        rounds = 0
        with np.errstate(over="ignore", invalid="ignore"):
            while self._active and schedule.starts[rounds + 1] < last:
                ahead = [
                    min(
                        int(np.searchsorted(newest_version[c], done[c], "right")),
                        int(np.searchsorted(newest_merge[c], rounds, "right")),
                        int(schedule.ends[c, rounds + 1]) if self._merge == "naive" else schedule.updates,
                        int(done[c]) + max(1, _TOGETHER // schedule.clusters),
                    )
                    for c in range(schedule.clusters)
                ]
                self._advance(done, ahead)
                done = np.asarray(ahead)
                while rounds + 1 < schedule.ends.shape[1] and (done >= schedule.ends[:, rounds + 1]).all():
                    rounds += 1
                    self._end_round(rounds)
                    if progress is not None:
                        progress(int(schedule.starts[rounds + 1]), last)
        return [self._result(index) for index in range(len(self._runs))]

    def _choose_probes(self) -> dict[int, list[tuple[int, int]]]:
        """k → runs that look at it, and how many updates it stands for."""
        probes: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for index, run in enumerate(self._runs):
            edges = strata(run.updates)
            for k, length in zip(self._random.integers(edges[:-1], edges[1:]), np.diff(edges), strict=True):
                probes[int(k)].append((index, int(length)))
        return dict(probes)

    def _advance(self, done: Ints, ahead: Sequence[int]) -> None:
        """The gradients of updates done[c] … ahead[c] − 1 of each cluster, which need none of each other."""
        schedule = self._schedule
        wave = np.concatenate([self._places[c][done[c] : ahead[c]] for c in range(schedule.clusters)])
        cluster = schedule.cluster[wave]
        micro_batches = schedule.version.shape[1]
        total = np.zeros((len(wave), *self._path.shape[2:]))
        for m in range(micro_batches):
            points = np.empty((len(wave), *self._path.shape[2:]))
            for stage, block in enumerate(self._blocks):
                version = schedule.version[wave, m, stage] % self._kept
                merged = schedule.merged[wave, m, stage] % self._kept_rounds
                points[..., block] = self._path[cluster, version, :, block] + self._base[cluster, merged, :, block]
            for place, k in enumerate(wave):
                for index, length in self._probes.get(int(k), ()):
                    self._look(self._measured[index].live, int(k), length, index, points[place])
            total += self._objective.gradients(points, self._random)
        change = -self._step[:, None] * total / micro_batches
        begin = 0
        for c, (a, b) in enumerate(zip(done, ahead, strict=True)):
            if b > a:
                steps = np.cumsum(change[begin : begin + b - a], axis=0) if b - a > 1 else change[begin : begin + 1]
                self._path[c, np.arange(a + 1, b + 1) % self._kept] = self._path[c, a % self._kept] + steps
                begin += b - a

    def _end_round(self, number: int) -> None:
        """The round's average, what it changes for everyone, and the virtual iterates on the way to it."""
        schedule = self._schedule
        begin, end = schedule.ends[:, number - 1], schedule.ends[:, number]
        weights = self._counts[:, number]
        for k in range(schedule.starts[number], min(schedule.starts[number + 1], schedule.updates)):
            if k in self._probes:
                self._look_at_virtual(int(k), number)
        made = [self._path[c, end[c] % self._kept] - self._path[c, begin[c] % self._kept] for c in range(len(end))]
        average = sum(w * p for w, p in zip(weights, made, strict=True))
        before, after = (number - 1) % self._kept_rounds, number % self._kept_rounds
        if self._merge == "progress":
            self._anchor = self._anchor + average
            for c in range(len(end)):
                self._base[c, after] = self._anchor - self._path[c, end[c] % self._kept]
        else:
            snapshots = []
            for c in range(len(end)):
                base = np.empty_like(self._anchor)
                for stage, block in enumerate(self._blocks):
                    base[:, block] = self._base[c, schedule.snapped[c, number, stage] % self._kept_rounds, :, block]
                snapshots.append(base + self._path[c, end[c] % self._kept])
            mean = sum(w * s for w, s in zip(weights, snapshots, strict=True))
            for c, snapshot in enumerate(snapshots):
                self._base[c, after] = self._base[c, before] + mean - snapshot
            self._anchor = np.asarray(mean)
        self._drop(int(schedule.starts[number + 1]))

    def _look_at_virtual(self, k: int, number: int) -> None:
        schedule = self._schedule
        point = self._anchor.copy()
        first = int(schedule.starts[number])
        made = np.bincount(schedule.cluster[first:k], minlength=schedule.clusters)
        for c in np.flatnonzero(made):
            begin = int(schedule.ends[c, number - 1])
            progress = self._path[c, (begin + made[c]) % self._kept] - self._path[c, begin % self._kept]
            point += self._counts[c, number] * progress
        for index, length in self._probes[k]:
            self._look(self._measured[index].virtual, k, length, index, point)

    def _look(self, into: list[tuple[float, Floats]], k: int, length: int, index: int, point: Floats) -> None:
        mine = self._columns == index
        if mine.any():
            gradient = self._objective.exact(point[None, mine])[0]
            into.append((length * float(self._weight[k]), (gradient**2).sum(axis=-1)))

    def _drop(self, finished: int) -> None:
        """Runs whose updates are all made leave."""
        over = [index for index in self._active if self._runs[index].updates <= finished]
        if over:
            self._active = [index for index in self._active if index not in over]
            stay = ~np.isin(self._columns, over)
            self._columns, self._step, self._anchor = self._columns[stay], self._step[stay], self._anchor[stay]
            self._path, self._base = self._path[:, :, stay], self._base[:, :, stay]

    def _result(self, index: int) -> Trained:
        run, measured = self._runs[index], self._measured[index]
        return Trained(run.updates, _mean(measured.virtual), _mean(measured.live))


def _mean(measured: Sequence[tuple[float, Floats]]) -> Floats:
    total = sum(weight for weight, _ in measured)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = sum(weight * values for weight, values in measured) / total
    return np.where(np.isfinite(mean) & (mean < DIVERGED), mean, np.inf)
