"""Part `rate`: does the mean squared gradient norm fall as 1/√K, below the theorem's bound? And does the check notice?

Trainings with the theorem's step for K from 2⁶ to 2¹⁸, on schedules that the machines made: one pipeline, and a fleet
of unequal clusters. A slope is judged where the predicted transient is over (transient.py), and not where too few
octaves are beyond it. Then the negative controls, judged by the same check of the slope: they must fail it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.convergence import fleets
from experiments.convergence.cases import SEEDS, Case, objectives, table_of
from experiments.convergence.data import digits, tumours
from experiments.convergence.fitting import LEAST_OCTAVES, OCTAVES, SLOPE_AT_MOST, Interval, falls, interval, slope
from experiments.convergence.objectives import MARGIN, Logistic, Network, Quadratic
from experiments.convergence.replay import Merge
from experiments.convergence.schedule import Floats
from experiments.convergence.transient import BEND, Transient, descend, transient
from experiments.report import Cell, Claim, Panel, Part, Series, Table

PIPELINE = fleets.Shape(stages=4, staleness=3)
FLEET = fleets.Shape(speeds=(1.0, 1.5), stages=2, staleness=2, round=4)
OVERLAPPING = fleets.equal(2, stages=2, staleness=1, round=4, lag=3, ring_rounds=3.2)
FIXED_AT = 2**8
"""The K whose step the control with a constant step keeps."""
OLD_DRAWS = 16
OFF_THE_PICTURE = 100.0
LATER = 8
"""The control with growing delay has T = K / LATER."""


@dataclass(frozen=True)
class Sizes:
    """How far each goes: K is 2⁶ to 2^longest updates of each cluster, in the fleet to 2^fleet, and so on."""

    longest: int
    fleet: int
    network: int
    controls: int
    delayed: int
    seeds: int = SEEDS


def sizes(*, quick: bool) -> Sizes:
    """Those of the report, or small ones."""
    return Sizes(15, 12, 0, 12, 10, 24) if quick else Sizes(18, 18, 17, 16, 13, 24)


@dataclass(frozen=True)
class Curve:
    """Errors by K: (lengths, seeds)."""

    name: str
    lengths: Sequence[int]
    errors: Floats
    bounds: Sequence[float] = ()
    transients: Sequence[Transient] = ()
    """None: all K are judged."""

    @property
    def settled(self) -> int:
        """The place of the first K from which on the transient is over, as far as K goes."""
        left = [place + 1 for place, each in enumerate(self.transients) if not each.is_over]
        return max(left, default=0)

    @property
    def slope(self) -> Interval | None:
        """Over the last OCTAVES of those beyond the transient. None when they are fewer than LEAST_OCTAVES."""
        lengths = self.lengths[self.settled :]
        if not lengths or lengths[-1] < lengths[0] * 2**LEAST_OCTAVES:
            return None
        return slope(lengths, self.errors[self.settled :])

    @property
    def fitted_from(self) -> int:
        """The first K of the slope."""
        return max(self.lengths[self.settled], self.lengths[-1] // 2**OCTAVES)

    def series(self, label: str) -> Series:
        seen = [interval(row) for row in self.errors]
        shown = [place for place, each in enumerate(seen) if each.mean < OFF_THE_PICTURE]
        return Series(
            label,
            [float(self.lengths[place]) for place in shown],
            [seen[place].mean for place in shown],
            [seen[place].low for place in shown],
            [seen[place].high for place in shown],
        )


def run(*, quick: bool) -> Part:
    """Measure and judge."""
    size = sizes(quick=quick)
    curves = [curve(name, where, size) for where in ("pipeline", "fleet") for name in ("quadratic", "logistic")]
    if size.network:
        curves.append(curve("network", "pipeline", size))
    claims = [claim for each in curves for claim in _judged(each)]
    beside = _overlapping(size, naive=False)
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
            "Transient (docs/theory.md, section 3): predicted from the descent without noise and the noise along it, "
            "not from what was measured; delays are left out. Descent bends: the predicted error's slope over K, more "
            "than −½. Delays bend: by how much their term makes the bound's slope steeper; – where "
            f"they also keep the step small. Over: both at most {BEND}, there and for every longer K. With fewer than "
            f"{LEAST_OCTAVES} octaves beyond it a slope is not judged. Controls, and what is set beside one, are "
            "judged by their last octaves wherever they are.",
            f"pipeline: {_in_words(PIPELINE)} fleet: {_in_words(FLEET)}",
            f"The network's L and σ² are not proved (docs/theory.md, section 7): they are {MARGIN} times the largest "
            "seen along its descent, and its bound is an estimate.",
            f"Controls. constant step: that of K = {FIXED_AT}. growing delay: T = K / {LATER}, with the step that "
            f"leaves T out. old data: gradients of {OLD_DRAWS} fixed draws, again and again. naive merge: w += "
            f"average − snapshot, up to {OVERLAPPING.lag} rounds in flight, measured where gradients are computed; "
            "progress on the same schedule is measured there too, and must pass.",
        ],
    )


def curve(name: str, where: str, size: Sizes) -> Curve:
    """One objective with the theorem's steps on one fleet, for all K."""
    shape, made = (PIPELINE, size.longest) if where == "pipeline" else (FLEET, size.fleet)
    lengths = [2**power for power in range(6, (size.network if name == "network" else made) + 1)]
    case = Case(objectives()[name], fleets.schedule(shape, shape.clusters * 2**made))
    whole = [shape.clusters * length for length in lengths]
    errors = table_of(case.train(whole, seeds=size.seeds, label=f"{name}, {where}"))
    promises = [case.promise(length) for length in whole]
    bounds = [promise.bound() for promise in promises]
    longest_time = max(promise.step * promise.sums.effective_updates for promise in promises)
    descent = descend(case.objective, case.problem.smoothness, longest_time)
    left = [transient(promise, descent) for promise in promises]
    return Curve(f"{name}, {where}", lengths, errors, bounds, left)


def controls(size: Sizes) -> list[Curve]:
    """What must fail, all on the quadratic but for old data, which is real."""
    lengths = [2**power for power in range(6, size.controls + 1)]
    pipeline = fleets.schedule(PIPELINE, 2 ** max(size.longest, size.controls))
    plain = Case(Quadratic(), pipeline)
    step = plain.promise(FIXED_AT).step
    seeds = size.seeds
    constant = table_of(plain.train(lengths, [step] * len(lengths), seeds=seeds, label="control: constant step"))
    features, signs = tumours()
    old = Case(Logistic(features, signs, old_draws=OLD_DRAWS), pipeline)
    fresh = Case(Logistic(features, signs), pipeline)
    steps = [fresh.promise(length).step for length in lengths]
    repeated = table_of(old.train(lengths, steps, seeds=seeds, label="control: old data"))
    return [
        Curve("constant step", lengths, constant),
        _growing_delay(size),
        Curve("old data", lengths, repeated),
        _overlapping(size, naive=True),
    ]


def _growing_delay(size: Sizes) -> Curve:
    lengths = [2**power for power in range(6, size.delayed + 1)]
    errors = []
    for length in lengths:
        shape = fleets.Shape(stages=2, staleness=length // LATER)
        case = Case(Quadratic(), fleets.schedule(shape, length))
        step = case.promise(length).best_step
        errors.append(case.train([length], [step], seeds=size.seeds, label=f"control: delay {length // LATER}")[0])
    return Curve("growing delay", lengths, table_of(errors))


def _overlapping(size: Sizes, *, naive: bool) -> Curve:
    """Two clusters whose rounds overlap; where gradients are computed."""
    lengths = [2**power for power in range(6, size.delayed + 1)]
    whole = [OVERLAPPING.clusters * length for length in lengths]
    case = Case(Quadratic(), fleets.schedule(OVERLAPPING, whole[-1]))
    merge: Merge = "naive" if naive else "progress"
    name = "naive merge" if naive else "progress, the same rounds"
    found = case.train(whole, seeds=size.seeds, merge=merge, label=name)
    return Curve(name, lengths, table_of(found, live=True))


def _judged(each: Curve) -> list[Claim]:
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
