"""When the rate is due: what mean ‖∇f‖² should be, to first order in the step, and how far that is from a slope of −½.

docs/theory-practice.md, section 9. The theorem bounds the way to go by F₀/(γK_e), which has the slope −½
from the beginning; a run has only spent what its descent has come down by then. Predicted from the descent without
noise, and from the noise along it: nothing here knows what was measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments.convergence.flow import flow
from experiments.convergence.objectives import Objective
from experiments.convergence.schedule import Floats
from experiments.convergence.theorem import Promise

BEND = 0.02
"""What is left of a transient may change the slope by so much, and no more."""
DRAWS = 512
"""Gradients by which the noise is seen, the same draws at each look: off by some per cent, but smooth."""
_LOOK_EVERY = 1.25
_NUDGE = 1e-4


@dataclass(frozen=True)
class Descent:
    """The descent of an objective and the noise on its way, at times that are close enough to draw lines between."""

    times: Floats
    spent: Floats
    """f(start) − f."""
    squared: Floats
    """‖∇f‖²"""
    looked_at: Floats
    """The times of the following, few and growing."""
    heating: Floats
    """tr(∇²f Σ): twice what noise adds to f in a unit of time, over the step. Σ is the covariance of a gradient."""
    variance: Floats
    """tr Σ"""


def descend(objective: Objective, smoothness: float, until: float) -> Descent:
    """From the objective's start to time `until`. `smoothness`: L."""
    step = 1 / (2 * smoothness)
    path, looks = [], []
    for moment in flow(objective.exact, objective.start, step):
        path.append((moment.time, moment.spent, float(moment.gradient @ moment.gradient)))
        if not looks or moment.time >= _LOOK_EVERY * looks[-1][0]:
            looks.append((moment.time, *_noise(objective, moment.point, moment.gradient)))
        if moment.time >= until:
            looks.append((moment.time, *_noise(objective, moment.point, moment.gradient)))
            break
    return Descent(*np.asarray(path).T, *np.asarray(looks).T)


def _noise(objective: Objective, point: Floats, gradient: Floats) -> tuple[float, float]:
    """tr(∇²f Σ) and tr Σ."""
    copies = np.tile(point, (DRAWS, 1, 1))
    noise = (objective.gradients(copies, np.random.default_rng(0)) - gradient)[:, 0]
    there, back = objective.exact((point + _NUDGE * noise)[None]), objective.exact((point - _NUDGE * noise)[None])
    bent = (there - back)[0] / (2 * _NUDGE)
    return float((noise * bent).sum(axis=1).mean()), float((noise**2).sum(axis=1).mean())


@dataclass(frozen=True)
class Transient:
    """What is left of it after K_e updates with the theorem's step."""

    error: float
    """Mean ‖∇f‖² as predicted, without delays."""
    bend: float
    """The slope of `error` over K, more than −½."""
    delays: float
    """What delays, lag and unequal progress make the slope of the theorem's bound steeper by. Infinite where they also
    keep the step small: then it does not shrink with K."""

    @property
    def is_over(self) -> bool:
        """Neither changes the slope by more than BEND."""
        return abs(self.bend) <= BEND and self.delays <= BEND


def transient(promise: Promise, descent: Descent) -> Transient:
    """Raises ValueError where the descent was not followed for long enough."""
    step, sums = promise.step, promise.sums
    time = step * sums.effective_updates
    if time > descent.times[-1]:
        raise ValueError(f"the descent is known until {descent.times[-1]:g}, not until {time:g}")
    noise = step / sums.effective_clusters
    spent = float(np.interp(time, descent.times, descent.spent))
    squared = float(np.interp(time, descent.times, descent.squared))
    steepens = time * float(np.interp(time, descent.times, np.gradient(descent.squared, descent.times)))
    coarse = noise / 4 * (float(descent.squared[0]) - squared)
    kept = noise / 4 * float(np.interp(time, descent.looked_at, descent.variance))
    now = time * noise / 2 * float(np.interp(time, descent.looked_at, descent.heating))
    so_far = noise / 2 * _integral(descent.looked_at, descent.heating, time)
    whole = spent + coarse - kept + so_far
    shrinks = promise.best_step <= promise.largest_step
    return Transient(
        error=whole / time,
        bend=(time * squared - coarse - noise / 4 * steepens + kept + now - so_far) / whole / 2,
        delays=promise.stale(step) / promise.bound() / 2 if shrinks else np.inf,
    )


def _integral(x: Floats, y: Floats, until: float) -> float:
    """Of the line through the points, from x₀ on."""
    inner = x[x < until]
    edges = np.append(inner, until)
    return float(np.trapezoid(np.interp(edges, x, y), edges))
