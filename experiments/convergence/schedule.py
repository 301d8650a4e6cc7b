"""Which weights each gradient of a run was computed with: all that the theory needs to know of a schedule. Pure.

A `Schedule` lists a fleet's updates in the order of docs/theory.md: by round, within a round by the moment at which
the first stage finished them. For each micro-batch and stage it says how many updates of its own cluster, and how many
rounds, the stage had applied when it ran the forward. `schedule_of` reads it off the trace of a virtual run, that is
off the decisions of the project's own stage, ring and round machines. `steady` states one without machines, for what
they never do. Knows no objective, no step size and no chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ravnest.simulator.fleet import VirtualFleet
from ravnest.simulator.trace import TraceEvent

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Schedule:
    """Updates k = 0 … N − 1 of C clusters, of U micro-batches each, on S stages (the blocks of the model)."""

    cluster: Ints
    """(N,): whose."""
    update: Ints
    """(N,): its number within the cluster, from 0."""
    round: Ints
    """(N,): the round that averages it, from 1."""
    version: Ints
    """(N, U, S): updates of the own cluster that the stage had applied at the forward."""
    merged: Ints
    """(N, U, S): rounds that it had merged then."""
    ends: Ints
    """(C, R + 1): a cluster's updates in all rounds up to each."""
    snapped: Ints
    """(C, R + 1, S): rounds that a stage had merged when it took the snapshot for each. What is averaged does not
    depend on it; a naive merge does."""

    @property
    def updates(self) -> int:
        return len(self.cluster)

    @property
    def clusters(self) -> int:
        return len(self.ends)

    @property
    def stages(self) -> int:
        return int(self.version.shape[2])

    @cached_property
    def weight(self) -> Floats:
        """(N,): ω, what an update of this cluster counts in the average of its round: h_c / Σ h."""
        made = np.diff(self.ends, axis=1)
        whole = made.sum(axis=0)
        return np.asarray(made[self.cluster, self.round - 1] / whole[self.round - 1], dtype=np.float64)

    @cached_property
    def staleness(self) -> Ints:
        """(N, U, S): own updates between the weights that were used and the update."""
        return self.update[:, None, None] - self.version

    @cached_property
    def starts(self) -> Ints:
        """(R + 2,): the first update of each round; rounds count from 1, the last entry is N."""
        return np.searchsorted(self.round, np.arange(self.ends.shape[1] + 1), side="left").astype(np.int64)

    def head(self, updates: int) -> Schedule:
        """The first so many. What an update counts is still said by its whole round."""
        cut = slice(0, updates)
        return Schedule(
            self.cluster[cut],
            self.update[cut],
            self.round[cut],
            self.version[cut],
            self.merged[cut],
            self.ends,
            self.snapped,
        )

    def check(self) -> None:
        """Raise AssertionError where an update uses what the order puts behind it, or what no machine may."""
        own = self.update[:, None, None]
        assert (self.version >= 0).all()
        assert (self.version <= own).all(), "an update of the own cluster that was not made yet"
        assert (self.merged < self.round[:, None, None]).all(), "a round that was not over yet"
        applied = self.ends[self.cluster[:, None, None], self.merged]
        assert (applied <= self.version).all(), "a round was merged before its own part was made"
        assert (np.diff(self.round) >= 0).all()


def schedule_of(trace: Iterable[TraceEvent], fleet: VirtualFleet) -> Schedule:
    """Of a virtual run. Without rings, rounds are stretches of updates, merged at once, which one cluster cannot tell.

    Raises ValueError for several clusters without rings: nothing would join them.
    """
    names = [cluster.stage_names() for cluster in fleet.clusters]
    if len(names) > 1 and not fleet.rings:
        raise ValueError("several clusters need rings")
    seen = {who: _Stage() for stages in names for who in stages}
    for event in trace:
        if event.kind == "compute":
            seen[event.who].take(event.instruction, event.end_s)
    parts = [_of_cluster([seen[who] for who in stages], fleet.update_every, bool(fleet.rings)) for stages in names]
    return _joined(parts)


@dataclass(frozen=True)
class Contribution:
    """What one cluster does in `steady`: `updates` to each round, with these delays of its stages."""

    updates: int
    delays: Sequence[int]


def steady(contributions: Sequence[Contribution], rounds: int, lag: int = 0) -> Schedule:
    """As many updates to each round by each cluster, every delay constant, every merge `lag` rounds late."""
    parts = []
    for each in contributions:
        updates = each.updates * rounds
        version = np.maximum(np.arange(updates)[:, None, None] - np.asarray(each.delays)[None, None, :], 0)
        ends = np.arange(rounds + 1) * each.updates
        merged = np.maximum(version // each.updates - lag, 0)
        moment = (np.arange(updates) + 1.0) / each.updates
        snapped = np.maximum(np.arange(rounds + 1) - 1 - lag, 0)
        parts.append(_Part(version, merged, ends, moment, np.repeat(snapped[:, None], len(each.delays), axis=1)))
    return _joined(parts)


def of_one_cluster(staleness: Ints) -> Schedule:
    """Of a lone cluster whose gradients were (N, U, S) updates late. Rounds are as in `schedule_of` without rings."""
    number = np.arange(len(staleness), dtype=np.int64)
    return _joined([_alone(number[:, None, None] - staleness, number.astype(np.float64))])


_PSEUDO_ROUND = 64
"""Updates of a lone cluster that are called a round where there is none."""


@dataclass
class _Part:
    """One cluster's: (n, U, S) versions and merges, (R + 1,) ends, (n,) moments, (R + 1, S) merges at the snapshots."""

    version: Ints
    merged: Ints
    ends: Ints
    moment: Floats
    snapped: Ints


class _Stage:
    def __init__(self) -> None:
        self.version = self.merged = 0
        self.used: list[tuple[int, int]] = []
        self.ends = [0]
        self.snapped = [0]
        self.moments: list[float] = []

    def take(self, word: str, end_s: float) -> None:
        if word.startswith("F"):
            self.used.append((self.version, self.merged))
        elif word.startswith("U"):
            self.version += 1
            self.moments.append(end_s)
        elif word.startswith("SNAP"):
            self.ends.append(self.version)
            self.snapped.append(self.merged)
        elif word.startswith("M"):
            self.merged += 1


def _of_cluster(stages: Sequence[_Stage], update_every: int, rounds: bool) -> _Part:
    used = np.asarray([stage.used for stage in stages], dtype=np.int64)  # (S, micro-batches, 2)
    by_update = used.reshape(len(stages), -1, update_every, 2).transpose(1, 2, 0, 3)
    version, merged = by_update[..., 0], by_update[..., 1]
    ends = np.asarray(stages[0].ends, dtype=np.int64)
    snapped = np.asarray([stage.snapped for stage in stages], dtype=np.int64).T
    if not rounds:
        return _alone(version, np.asarray(stages[0].moments))
    return _Part(version, merged, ends, np.asarray(stages[0].moments), snapped)


def _alone(version: Ints, moments: Floats) -> _Part:
    whole = len(version)
    ends = np.append(np.arange(0, whole, _PSEUDO_ROUND), whole).astype(np.int64)
    snapped = np.repeat(np.maximum(np.arange(len(ends)) - 1, 0)[:, None], version.shape[2], axis=1)
    return _Part(version, version // _PSEUDO_ROUND, ends, moments, snapped)


def _joined(parts: Sequence[_Part]) -> Schedule:
    columns: list[list[Any]] = [[], [], [], [], [], []]
    for cluster, part in enumerate(parts):
        count = len(part.version)
        number = np.arange(count)
        of_round = np.searchsorted(part.ends, number, side="right")
        for column, value in zip(
            columns,
            (np.full(count, cluster), number, of_round, part.version, part.merged, part.moment),
            strict=True,
        ):
            column.append(value)
    cluster_, update, round_, version, merged, moment = (np.concatenate(column) for column in columns)
    order = np.lexsort((cluster_, update, moment, round_))
    schedule = Schedule(
        cluster_[order].astype(np.int64),
        update[order].astype(np.int64),
        round_[order].astype(np.int64),
        version[order].astype(np.int64),
        merged[order].astype(np.int64),
        np.stack([part.ends for part in parts]).astype(np.int64),
        np.stack([part.snapped for part in parts]).astype(np.int64),
    )
    schedule.check()
    return schedule
