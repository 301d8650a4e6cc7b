"""Part `blocks`: stages of unequal staleness, beside uniform delays of the same mean and of the same maximum.

The theorem says that the error goes by the mean of the delays, weighted by the blocks' variances, and that how large a
step may be goes by the oldest. The unequal ones are a pipeline's own, made by the machines; uniform ones, which no
pipeline has, are stated (`steady`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.convergence import fleets
from experiments.convergence.cases import SEEDS, Case, table_of
from experiments.convergence.data import tumours
from experiments.convergence.fitting import Interval, crossing, interval, percentiles, resampled
from experiments.convergence.objectives import Logistic, Objective, Quadratic
from experiments.convergence.schedule import Contribution, Floats, Ints, steady
from experiments.harness.report import Cell, Claim, Panel, Part, Series, Table

STAGES = 6
OLDEST = 10
LARGEST_SHARE = 0.5
SAME = 0.25
RESAMPLED = 400
BROKEN = 10.0
"""Times the error without delay: there a step is too large."""


@dataclass(frozen=True)
class Sizes:
    """Updates, and steps in parts of γ₁."""

    updates: int
    steps: Sequence[float]
    seeds: int = SEEDS


def sizes(*, quick: bool) -> Sizes:
    """Those of the report, or small ones."""
    return (
        Sizes(2**9, (1.0, 1.5, 2.0, 2.5, 3.0, 4.0), 32)
        if quick
        else Sizes(2**10, (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0), 64)
    )


def run(*, quick: bool) -> Part:
    """Measure and judge."""
    size = sizes(quick=quick)
    rows: list[list[Cell]] = []
    claims: list[Claim] = []
    panels: list[Panel] = []
    found: dict[str, Case] = {}
    for objective in (Quadratic(sigma_sq=1.0), Logistic(*tumours(), batch=8)):
        found = _cases(objective, size)
        base = found["no delay"].promise(size.updates).best_step
        steps = [base * factor for factor in size.steps]
        errors = {
            name: table_of(
                case.train([size.updates] * len(steps), steps, seeds=size.seeds, label=f"{objective.name}, {name}")
            )
            for name, case in found.items()
        }
        for name, each in errors.items():
            for factor, row in zip(size.steps, each, strict=True):
                seen = interval(row)
                rows.append([objective.name, name, factor, str(seen) if math.isfinite(seen.mean) else "diverged"])
        claims += judged(objective, errors, size)
        panels.append(_panel(objective, errors, size))
    sums = {name: case.promise(size.updates).sums for name, case in found.items()}
    own, mean, most = sums["pipeline"], sums["uniform, same mean"], sums["uniform, same maximum"]
    claims.append(
        Claim(
            "sums",
            "what the theorem says of the pipeline: its error term (S̄) over that of uniform delays of the same mean; "
            "its stability term (√D) over that of the same maximum",
            f"1 within {SAME:.0%}",
            f"{own.error / mean.error:.3g}; {math.sqrt(own.stability / most.stability):.3g}",
            abs(own.error / mean.error - 1) <= SAME and abs(math.sqrt(own.stability / most.stability) - 1) <= SAME,
        )
    )
    delays = ", ".join(f"{delay:.2f}" for delay in _delays(found["pipeline"]))
    return Part(
        "blocks",
        "Blocks",
        claims,
        [
            Table(
                "Mean squared gradient norm, by step (in parts of γ₁)",
                ["objective", "delays", "step", "measured (95 %)"],
                rows,
            )
        ],
        panels,
        [
            f"{STAGES} stages, K = {size.updates}, {size.seeds} seeds. Mean delays of the pipeline's stages, first to "
            f"last: {delays}. The place of the pipeline is (pipeline − same mean) / (same maximum − same mean), of "
            "errors with the largest step at which none of them has broken down; its interval is by resampling the "
            f"seeds {RESAMPLED} times, the same ones of all three. A step's limit is judged where blocks are alike, "
            "as the quadratic's are.",
        ],
    )


def _cases(objective: Objective, size: Sizes) -> dict[str, Case]:
    pipeline = Case(objective, fleets.schedule(fleets.Shape(stages=STAGES, staleness=OLDEST), size.updates))
    problem = pipeline.problem
    shares = np.asarray(problem.sigma_sq) / problem.whole_sigma_sq
    mean = round(float((shares * _delays(pipeline)).sum()))
    uniform = {"no delay": 0, "uniform, same mean": mean, "uniform, same maximum": OLDEST}
    rounds = -(-size.updates // 64)
    stated = {
        name: Case(objective, steady([Contribution(64, [delay] * STAGES)], rounds)) for name, delay in uniform.items()
    }
    return {"no delay": stated.pop("no delay"), "pipeline": pipeline, **stated}


def _delays(case: Case) -> Floats:
    """(S,): of the second half, when the pipeline is filled."""
    ages = case.schedule.staleness
    return np.asarray(ages[len(ages) // 2 :].mean(axis=(0, 1)), dtype=np.float64)


def judged(objective: Objective, errors: dict[str, Floats], size: Sizes) -> list[Claim]:
    none, own, mean, most = (
        errors[name] for name in ("no delay", "pipeline", "uniform, same mean", "uniform, same maximum")
    )
    sound = [place for place in range(len(size.steps)) if most[place].mean() <= BROKEN * none[place].mean()]
    place = sound[-1] if sound else 0
    share = share_interval(own[place], mean[place], most[place])
    claims = [
        Claim(
            f"error: {objective.name}",
            "error of the pipeline, placed between those of uniform delays of the same mean (0) and of the same "
            f"maximum (1), at {size.steps[place]:g} γ₁",
            f"upper end of the 95 % interval <= {LARGEST_SHARE}",
            str(share),
            share.high <= LARGEST_SHARE,
        )
    ]
    if not isinstance(objective, Quadratic):
        return claims  # its blocks differ in curvature: the oldest need not be the first to break down
    limits = {
        name: crossing(
            size.steps,
            [float(a.mean() / b.mean()) for a, b in zip(errors[name], none, strict=True)],
            BROKEN,
            rising=True,
        )
        for name in ("pipeline", "uniform, same mean", "uniform, same maximum")
    }
    said = ", ".join(f"{name} {value:.3g}" for name, value in limits.items())
    own_limit, mean_limit, most_limit = limits.values()
    reached = math.isfinite(own_limit) and math.isfinite(most_limit)
    return [
        *claims,
        Claim(
            f"stability: {objective.name}",
            f"the step (in γ₁) at which the error is {BROKEN:g} times that without delay goes by the oldest stage",
            "nearer to that of the same maximum than to that of the same mean",
            said,
            abs(own_limit - most_limit) < abs(mean_limit - own_limit) if reached else None,
        ),
    ]


def share_interval(own: Floats, mean: Floats, most: Floats) -> Interval:
    """Where `own` lies on the way from `mean` to `most`. (seeds,) each; a seed has the same chance in all three."""

    def share(chosen: Ints) -> float:
        low = mean[chosen].mean()
        return float((own[chosen].mean() - low) / (most[chosen].mean() - low))

    draws = resampled(RESAMPLED, len(own), np.random.default_rng(0))
    return Interval(share(np.arange(len(own))), *percentiles([share(draw) for draw in draws]))


def _panel(objective: Objective, errors: dict[str, Floats], size: Sizes) -> Panel:
    series = []
    for name, each in errors.items():
        means = each.mean(axis=1)
        shown = [place for place, value in enumerate(means) if value < 1e3 * errors["no delay"].mean()]
        series.append(Series(name, [size.steps[i] for i in shown], [float(means[i]) for i in shown]))
    return Panel(f"Blocks: {objective.name}", "step over γ₁", "mean ‖∇f‖²", series, log_y=True)
