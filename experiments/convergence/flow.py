"""The descent without noise: gradient flow from a start, by Runge and Kutta's steps. Knows no objective."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from experiments.convergence.schedule import Floats

Gradient = Callable[[Floats], Floats]
"""(points, runs, d) → the same: ∇f."""


@dataclass(frozen=True)
class Moment:
    """Where the flow is."""

    time: float
    """The sum of the steps that a run would have made."""
    point: Floats
    """(d,)"""
    gradient: Floats
    """(d,)"""
    spent: float
    """f(start) − f(point), as the integral of ‖∇f‖² over time."""


def flow(exact: Gradient, start: Floats, step: float) -> Iterator[Moment]:
    """From `start` (d,), for ever, at times `step` apart. Good for steps up to 1/L; stable up to 2.7/L."""
    point, spent, number = start, 0.0, 0

    def slope(at: Floats) -> Floats:
        return exact(at[None, None])[0, 0]

    while True:
        first = slope(point)
        yield Moment(number * step, point, first, spent)
        second = slope(point - step / 2 * first)
        third = slope(point - step / 2 * second)
        fourth = slope(point - step * third)
        point = point - step / 6 * (first + 2 * second + 2 * third + fourth)
        squares = [float(each @ each) for each in (first, second, third, fourth)]
        spent += step / 6 * (squares[0] + 2 * squares[1] + 2 * squares[2] + squares[3])
        number += 1
