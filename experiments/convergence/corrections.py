"""One cluster with ravnest's own optimizers and corrections along a schedule: what the theorem leaves out, measured.

Each stage has its own torch optimizer and `ravnest.training.corrections` step, as in a run; all seeds are rows of one
parameter, which changes nothing, since SGD works element by element. Measured at the newest weights, which for plain
SGD are the virtual iterates.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import torch

from experiments.convergence.cases import Case
from experiments.convergence.replay import DIVERGED, PROBES
from experiments.convergence.schedule import Floats
from ravnest.training.corrections import CorrectionName, corrected


@dataclass(frozen=True)
class Way:
    """An optimizer and what it does about staleness."""

    name: str
    correction: CorrectionName
    momentum: float = 0.0


WAYS = (
    Way("SGD, none", "none"),
    Way("SGD, delay_adaptive", "delay_adaptive"),
    Way("SGD, momentum 0.9, none", "none", 0.9),
    Way("SGD, momentum 0.9, look_ahead", "look_ahead", 0.9),
)


def train_corrected(case: Case, way: Way, updates: int, step: float, *, seeds: int, seed: int = 0) -> Floats:
    """(seeds,): mean ‖∇f‖² at the newest weights over so many updates. Infinite where a run diverged.

    `step`: of plain SGD; with momentum the rate is (1 − momentum) times as much, which moves as far in the long run.
    """
    schedule, objective = case.schedule, case.objective
    if schedule.clusters != 1 or schedule.version.shape[1] != 1:
        raise ValueError("one cluster, and one micro-batch an update")
    random = np.random.default_rng(seed)
    start = torch.from_numpy(np.tile(objective.start, (seeds, 1)))
    weights = [torch.nn.Parameter(start[:, block].clone()) for block in case.blocks]
    optimizers = [torch.optim.SGD([part], lr=1.0, momentum=way.momentum) for part in weights]
    steps = [corrected(way.correction, optimizer) for optimizer in optimizers]
    kept = int(schedule.staleness.max()) + 1
    versions = [deque([part.detach().numpy().copy()], maxlen=kept) for part in weights]
    measured = []
    every = max(1, updates // PROBES)
    with np.errstate(over="ignore", invalid="ignore"):
        for k in range(updates):
            newest = np.concatenate([each[-1] for each in versions], axis=1)
            if k % every == 0:
                measured.append((objective.exact(newest[None])[0] ** 2).sum(axis=-1))
                if not (measured[-1] < DIVERGED).all():
                    return np.full(seeds, np.inf)
            ages = schedule.staleness[k, 0]
            point = np.concatenate([each[-1 - int(age)] for each, age in zip(versions, ages, strict=True)], axis=1)
            gradient = objective.gradients(point[None], random)[0]
            for block, part, corrected_step, age, each in zip(case.blocks, weights, steps, ages, versions, strict=True):
                part.grad = torch.from_numpy(np.ascontiguousarray(gradient[:, block]))
                corrected_step(step * (1 - way.momentum), float(age), k)
                each.append(part.detach().numpy().copy())
    return np.asarray(np.mean(measured, axis=0), dtype=np.float64)
