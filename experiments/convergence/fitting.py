"""Slopes, crossings and their 95 % intervals over seeds. Pure arithmetic; the same checks judge runs and controls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from experiments.convergence.schedule import Floats, Ints

SLOPE_AT_MOST = -0.47
"""What the upper end of a rate's interval may be: −1/2, and a little for what is left of the transient."""
OCTAVES = 5
"""Of K, the last ones: a rate is what holds in the end."""
LEAST_OCTAVES = 3
"""Of K beyond the transient: from fewer no slope is judged."""


@dataclass(frozen=True)
class Interval:
    """A mean over seeds and its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3g} ({self.low:.3g} to {self.high:.3g})"


def interval(values: Floats) -> Interval:
    """By Student's t. Infinite or undefined values make it infinite."""
    if not np.isfinite(values).all():
        return Interval(math.inf, math.inf, math.inf)
    mean = float(values.mean())
    margin = float(student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))
    return Interval(mean, mean - margin, mean + margin)


def slope(lengths: Sequence[int], errors: Floats) -> Interval:
    """Of log error against log K over the last OCTAVES. `errors` (lengths, seeds): each seed has a slope of its own.

    A seed of one K and one of another are different trainings, so that the slopes are independent. Where one diverged
    the slope is infinite: it does not fall.
    """
    last = [place for place, length in enumerate(lengths) if length * 2**OCTAVES >= lengths[-1]]
    x = np.log(np.asarray([lengths[place] for place in last], dtype=float))
    if not np.isfinite(errors[last]).all():
        return Interval(math.inf, math.inf, math.inf)
    y = np.log(errors[last])
    x = x - x.mean()
    return interval((x[:, None] * y).sum(axis=0) / (x**2).sum())


def falls(found: Interval) -> bool:
    """The check of the rate, which runs must pass and controls must not."""
    return found.high <= SLOPE_AT_MOST


def crossing(x: Sequence[float], y: Sequence[float], level: float, *, rising: bool) -> float:
    """The first x, between points by log–log interpolation, at which y passes `level`. Infinite when it does not.

    y that is infinite counts as far above.
    """
    sign = 1.0 if rising else -1.0
    height = np.log(np.clip(np.asarray(y, dtype=float), 1e-300, 1e6)) - math.log(level)
    place = np.log(np.asarray(x, dtype=float))
    beyond = np.flatnonzero(sign * height >= 0)
    if len(beyond) == 0:
        return math.inf
    first = int(beyond[0])
    if first == 0:
        return float(x[0])
    share = height[first - 1] / (height[first - 1] - height[first])
    return float(math.exp(place[first - 1] + share * (place[first] - place[first - 1])))


def resampled(count: int, seeds: int, random: np.random.Generator) -> list[Ints]:
    """`count` draws of seeds with replacement, for intervals of what is no mean."""
    return [random.integers(seeds, size=seeds) for _ in range(count)]


def percentiles(values: Sequence[float]) -> tuple[float, float]:
    """The middle 95 %."""
    ordered = np.sort(np.asarray(values, dtype=float))
    last = len(ordered) - 1
    return float(ordered[int(0.025 * last)]), float(ordered[math.ceil(0.975 * last)])
