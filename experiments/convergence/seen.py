"""What can be seen of an objective whose constants nobody has proved: curvature and variance along its descent.

The descent without noise is looked at again and again, at twice the time each; what is seen there is no bound. Whoever
takes it for one adds a margin and says so; a test looks for more along trainings with noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.convergence.flow import Gradient, flow
from experiments.convergence.schedule import Floats

LOOKS = 12
"""At time 0, 1, 2, 4, … of the descent."""
_NUDGE = 1e-4
_LONGEST = 2.5
"""Of a step times the curvature, for Runge and Kutta."""


@dataclass(frozen=True)
class Seen:
    """At one point of the descent."""

    time: float
    spent: float
    """f(start) − f."""
    curvature: float
    """The Hessian's eigenvalue of largest modulus."""
    variance: Floats
    """(d,): of one sample's gradient, by parameter."""


def look(exact: Gradient, each: Callable[[Floats], Floats], start: Floats) -> Sequence[Seen]:
    """`each`: (d,) → (samples, d), every sample's gradient. Raises ValueError where curvature grows tenfold on the way:
    then the steps along the descent, which go by that of the start, are too long.
    """
    step = 1 / (4 * curvature(exact, start))
    found: list[Seen] = []
    for moment in flow(exact, start, step):
        if not found or moment.time >= 2 ** (len(found) - 1):
            variance = each(moment.point).var(axis=0)
            bent = curvature(exact, moment.point)
            if bent * step > _LONGEST:
                raise ValueError(f"a curvature of {bent:g} at time {moment.time:g}: too much for steps of {step:g}")
            found.append(Seen(moment.time, moment.spent, bent, variance))
        if len(found) == LOOKS:
            break
    return found


def curvature(exact: Gradient, point: Floats) -> float:
    """The eigenvalue of largest modulus of the whole Hessian at (d,), whose columns are differences of gradients."""
    nudges = _NUDGE * np.eye(len(point))
    columns = (exact((point + nudges)[None]) - exact((point - nudges)[None]))[0] / (2 * _NUDGE)
    return float(np.abs(np.linalg.eigvalsh((columns + columns.T) / 2)).max())
