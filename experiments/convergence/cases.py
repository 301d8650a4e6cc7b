"""An objective on a fleet: the blocks, what the theorem promises for each K, and trainings with its steps."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from experiments.convergence.data import digits, tumours
from experiments.convergence.objectives import Logistic, Network, Objective, Quadratic, equal_blocks
from experiments.convergence.replay import Merge, Run, Trained, train
from experiments.convergence.schedule import Floats, Schedule
from experiments.convergence.theorem import Problem, Promise, sums

SEEDS = 32


@dataclass
class Case:
    """An objective along a schedule."""

    objective: Objective
    schedule: Schedule
    _promises: dict[int, Promise] = field(default_factory=dict)

    @property
    def blocks(self) -> list[slice]:
        return equal_blocks(len(self.objective.start), self.schedule.stages)

    @property
    def problem(self) -> Problem:
        return self.objective.problem(self.blocks)

    def promise(self, updates: int) -> Promise:
        """The theorem for the first so many updates of the fleet."""
        if updates not in self._promises:
            problem = self.problem
            shares = [part / problem.whole_sigma_sq for part in problem.sigma_sq]
            self._promises[updates] = Promise(problem, sums(self.schedule.head(updates), shares))
        return self._promises[updates]

    def train(
        self,
        lengths: Sequence[int],
        steps: Sequence[float] | None = None,
        *,
        seeds: int = SEEDS,
        seed: int = 0,
        merge: Merge = "progress",
        label: str = "",
    ) -> list[Trained]:
        """One training for each length (updates of the fleet), with the theorem's step unless others are given."""
        chosen = [self.promise(length).step for length in lengths] if steps is None else steps
        runs = [Run(length, step, seeds) for length, step in zip(lengths, chosen, strict=True)]
        shown = _Shown(label or self.objective.name)
        return train(self.objective, self.blocks, self.schedule, runs, seed=seed, merge=merge, progress=shown)


def objectives() -> dict[str, Objective]:
    """By a short name."""
    return {"quadratic": Quadratic(), "logistic": Logistic(*tumours()), "network": Network(*digits())}


def table_of(found: Sequence[Trained], *, live: bool = False) -> Floats:
    """(lengths, seeds)"""
    return np.stack([each.live if live else each.virtual for each in found])


class _Shown:
    """Prints how far a training is, at each fifth."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._next = 0.2

    def __call__(self, done: int, whole: int) -> None:
        if done >= self._next * whole:
            share = min(1.0, done / whole)
            print(f"  {self._label}: {share:.0%} of {whole} updates", file=sys.stderr, flush=True)
            self._next = share + 0.2
