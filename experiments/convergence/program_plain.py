"""What the real program is compared with in part `program`: the theorem's constants, estimated, and SGD without delay.

Constants of a real network are seen, not proved: the largest over the start and a short training of the curvature (by
power iteration) and of the gradients' variance. Plain SGD takes the very micro-batches of a run with one cluster.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from experiments.convergence.program_run import PROBES, Probe, Trial, first_weights, mean_between
from experiments.convergence.theorem import Problem
from ravnest.training.batches import arguments, fetch
from ravnest.training.sampler import Sampler

_LOOKED_AT = slice(0, 64)
"""The samples by which curvature and variance are estimated."""
_POWER_STEPS = 12
_PILOT = 128
"""Updates of the short training."""


@cache
def estimate(task: str, update_samples: int = 4) -> Problem:
    """L and σ² of one block, and f at the start over 0."""
    probe = _at_start(Trial(task, 1, 1.0))
    gap = probe.loss().item()
    smoothness, variance = curvature(probe), _variance(probe)
    step = 1 / (4 * smoothness)
    for place in range(2):
        _descend(probe, step, place * _PILOT // 2, _PILOT // 2, update_samples)
        smoothness, variance = max(smoothness, curvature(probe)), max(variance, _variance(probe))
    return Problem(smoothness, (variance / update_samples,), gap)


def best_step(problem: Problem, updates: int, clusters: int = 1) -> float:
    """The theorem's γ₁, and no more than 1 / (2 L). `updates`: of each cluster."""
    wanted = math.sqrt(2 * problem.gap * clusters / (problem.smoothness * problem.whole_sigma_sq * updates))
    return min(wanted, 1 / (2 * problem.smoothness))


def plain_error(trial: Trial) -> float:
    """Mean ‖∇f‖² of SGD without delay: one process, one cluster, the trial's steps and samples."""
    probe = _at_start(trial)
    every = max(1, trial.updates // PROBES)
    probes = [(0, float((probe.gradient() ** 2).sum()))]
    for done in range(0, trial.updates, every):
        made = min(every, trial.updates - done)
        _descend(probe, trial.step, done, made, trial.update_samples, trial.seed)
        probes.append((done + made, float((probe.gradient() ** 2).sum())))
    return mean_between(probes)


def curvature(probe: Probe) -> float:
    """The Hessian's eigenvalue of largest modulus, or a little less, at the probe's weights."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # the others have no second derivative
        slope = probe.gradient(_LOOKED_AT, graph=True)
        direction = torch.randn(len(slope), generator=torch.Generator().manual_seed(0))
        found = 0.0
        for _ in range(_POWER_STEPS):
            direction = direction / direction.norm()
            parts = torch.autograd.grad(slope @ direction, list(probe.model.parameters()), retain_graph=True)
            direction = torch.cat([part.reshape(-1) for part in parts])
            found = float(direction.norm())
    return found


def _variance(probe: Probe) -> float:
    """Of the gradient of one sample."""
    each = torch.stack([probe.gradient(slice(place, place + 1)) for place in range(_LOOKED_AT.stop)])
    return float(each.var(dim=0).sum())


def _at_start(trial: Trial) -> Probe:
    probe = Probe(trial.task)
    probe.model.load_state_dict(first_weights(trial))
    return probe


def _descend(probe: Probe, step: float, first: int, updates: int, samples: int, seed: int = 0) -> None:
    data = probe.data.train
    sampler = Sampler(len(data), seed, (0.0, 1.0), samples)
    parameters = list(probe.model.parameters())
    for number in (first + index for index in range(updates)):
        inputs, target = fetch(data, sampler.batch(number))
        (rows,), _ = arguments(inputs)
        gradients = torch.autograd.grad(probe.loss_on(rows, target), parameters)
        _move(parameters, gradients, step)


def _move(parameters: list[torch.nn.Parameter], gradients: tuple[Tensor, ...], step: float) -> None:
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.sub_(gradient, alpha=step)
