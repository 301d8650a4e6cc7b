"""Part `rate`: does the mean squared gradient norm fall as 1/√K, below the theorem's bound? And does the check notice?

Decides what is claimed of the curves (curves.py): slopes beyond the predicted transient, every point below the bound;
and that the negative controls fail the same check of the slope.
"""

from __future__ import annotations

import math

import numpy as np

from experiments.convergence import fleets
from experiments.convergence.curves import (
    FIXED_AT,
    FLEET,
    LATER,
    OLD_DRAWS,
    OVERLAPPING,
    PIPELINE,
    Curve,
    controls,
    curve,
    overlapping,
    sizes,
)
from experiments.convergence.data import digits
from experiments.convergence.fitting import LEAST_OCTAVES, OCTAVES, SLOPE_AT_MOST, Interval, falls, interval
from experiments.convergence.objectives import MARGIN, Network
from experiments.convergence.transient import BEND
from experiments.harness.report import Cell, Claim, Panel, Part, Series, Table


def run(*, quick: bool) -> Part:
    """Measure and judge."""
    size = sizes(quick=quick)
    curves = [curve(name, where, size) for where in ("pipeline", "fleet") for name in ("quadratic", "logistic")]
    if size.network:
        curves.append(curve("network", "pipeline", size))
    claims = [claim for each in curves for claim in judged(each)]
    beside = overlapping(size, naive=False)
    claims.append(
        Claim(
            f"slope: {beside.name}",
            "the same rounds as those of the naive merge below, averaged as progress",
            f"upper end of the 95 % interval <= {SLOPE_AT_MOST}",
            _said(beside.slope),
            _falls(beside.slope),
        )
    )
    controlled = controls(size)
    for each in controlled:
        found = each.slope
        claims.append(
            Claim(
                f"control: {each.name}",
                "fails the same check of the slope",
                f"upper end > {SLOPE_AT_MOST}, or diverges",
                _said(found),
                None if found is None else not falls(found),
            )
        )
    rows = [_row(each, place) for each in curves for place in range(len(each.lengths))]
    control_rows: list[list[Cell]] = [
        [each.name, length, _finite(each.errors[place].mean())]
        for each in (*controlled, beside)
        for place, length in enumerate(each.lengths)
    ]
    panels = [_panel(each) for each in curves]
    compared = [each.series(each.name) for each in (curves[0], beside, *controlled)]
    panels.append(
        Panel("Negative controls", "K", "mean ‖∇f‖²", [one for one in compared if one.x], log_x=True, log_y=True)
    )
    return Part(
        "rate",
        "The rate",
        claims,
        [
            Table(
                "Mean squared gradient norm at the virtual iterates, by K (updates of each cluster, on average)",
                [
                    "case",
                    "K",
                    "measured (95 %)",
                    "predicted",
                    "bound",
                    "descent bends",
                    "delays bend",
                    "transient over",
                ],
                rows,
            ),
            *([_seen()] if size.network else []),
            Table("Negative controls", ["control", "K", "measured"], control_rows),
        ],
        panels,
        [
            f"Slopes are fitted over the last {OCTAVES} octaves of K, {size.seeds} seeds for each K. The seeds of one "
            "K share the schedule that the machines made and have chance of their own.",
            "Transient (docs/theory-practice.md, section 9): predicted from the descent without noise and the noise "
            "along it, not from what was measured; delays are left out. Descent bends: the predicted error's slope "
            "over K, more than −½. Delays bend: by how much their term makes the bound's slope steeper; – where "
            f"they also keep the step small. Over: both at most {BEND}, there and for every longer K. With fewer than "
            f"{LEAST_OCTAVES} octaves beyond it a slope is not judged. Controls, and what is set beside one, are "
            "judged by their last octaves wherever they are.",
            f"pipeline: {_in_words(PIPELINE)} fleet: {_in_words(FLEET)}",
            f"The network's L and σ² are not proved (docs/theory-practice.md, section 7): they are {MARGIN} times the "
            "largest seen along its descent, and its bound is an estimate.",
            f"Controls. constant step: that of K = {FIXED_AT}. growing delay: T = K / {LATER}, with the step that "
            f"leaves T out. old data: gradients of {OLD_DRAWS} fixed draws, again and again. naive merge: w += "
            f"average − snapshot, up to {OVERLAPPING.lag} rounds in flight, measured where gradients are computed; "
            "progress on the same schedule is measured there too, and must pass.",
        ],
    )


def judged(each: Curve) -> list[Claim]:
    means = each.errors.mean(axis=1)
    highest = max(float(mean / bound) for mean, bound in zip(means, each.bounds, strict=True))
    found = each.slope
    where = "too few K beyond the transient" if found is None else f"K = {each.fitted_from} to {each.lengths[-1]}"
    return [
        Claim(
            f"slope: {each.name}",
            f"slope of log mean ‖∇f‖² over log K beyond the predicted transient: {where}",
            f"upper end of the 95 % interval <= {SLOPE_AT_MOST}",
            _said(found),
            _falls(found),
        ),
        Claim(
            f"bound: {each.name}",
            "every measured point over the theorem's bound, at most",
            "< 1",
            f"{highest:.3g}",
            highest < 1,
        ),
    ]


def _row(each: Curve, place: int) -> list[Cell]:
    left = each.transients[place]
    return [
        each.name,
        each.lengths[place],
        str(interval(each.errors[place])),
        left.error,
        each.bounds[place],
        f"{left.bend:+.4f}",
        f"{left.delays:.4f}" if math.isfinite(left.delays) else None,
        "yes" if place >= each.settled else "no",
    ]


def _seen() -> Table:
    network = Network(*digits())
    rows: list[list[Cell]] = [
        [each.time, network.loss(network.start) - each.spent, each.curvature, float(each.variance.sum())]
        for each in network.seen
    ]
    return Table(
        "Seen along the network's descent",
        ["time (sum of steps)", "f", "largest curvature", "variance of a sample's gradient"],
        rows,
    )


def _panel(each: Curve) -> Panel:
    lengths = [float(length) for length in each.lengths]
    lines = [
        each.series("measured"),
        Series("predicted", lengths, [left.error for left in each.transients]),
        Series("the theorem's bound", lengths, list(each.bounds)),
    ]
    return Panel(f"Rate: {each.name}", "K", "mean ‖∇f‖²", lines, log_x=True, log_y=True)


def _falls(found: Interval | None) -> bool | None:
    return None if found is None else falls(found)


def _said(found: Interval | None) -> str:
    if found is None:
        return f"not judged: fewer than {LEAST_OCTAVES} octaves"
    return str(found) if np.isfinite(found.mean) else "diverges"


def _finite(value: float) -> Cell:
    return float(value) if np.isfinite(value) else "diverged"


def _in_words(shape: fleets.Shape) -> str:
    return (
        f"{shape.clusters} cluster(s) of speeds {', '.join(f'{speed:g}' for speed in shape.speeds)}, {shape.stages} "
        f"stages, max_staleness {shape.staleness}, one micro-batch an update, {shape.round} updates of the slowest to "
        f"a round, max_lag {shape.lag}."
    )
