"""How fast the real program converges, beside SGD without delay and beside the bound: a section of part `program`.

The comparison is with the same samples and the same steps, so that what is left is the delay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from experiments.convergence.fitting import Interval, interval
from experiments.convergence.program_plain import best_step, estimate, plain_error
from experiments.convergence.program_run import Outcome, Trial, train
from experiments.convergence.schedule import Floats, of_one_cluster
from experiments.convergence.theorem import Problem, Promise, sums
from experiments.harness.report import Cell, Claim, Panel, Series, Table

ALIKE = 1.1
"""Error over that without delay up to which staleness costs nothing."""
FLATTER_BY = 0.05
RAY_WITHIN = 0.1
BY_RAY = 256
"""Updates of each cluster in the trainings that Ray starts."""

NO_BOUND = "none: the step is beyond the theorem's for the delays that occurred"

Found = tuple[list[Claim], list[Table], list[Panel]]


def by_length(
    task: str, lengths: Sequence[int], seeds: int, *, stages: int, staleness: int
) -> tuple[Floats, Floats, list[float]]:
    """(lengths, seeds) of the program and of SGD without delay; the largest bound of each length."""
    problem = estimate(task)
    real, plain, bounds = [], [], []
    for length in lengths:
        step = best_step(problem, length)
        trials = [Trial(task, length, step, stages=stages, staleness=staleness, seed=seed) for seed in range(seeds)]
        outcomes = [train(trial) for trial in trials]
        real.append([outcome.error for outcome in outcomes])
        plain.append([plain_error(trial) for trial in trials])
        bounds.append(max(bound_of(outcome, problem, step) for outcome in outcomes))
    return np.asarray(real), np.asarray(plain), bounds


def bound_of(outcome: Outcome, problem: Problem, step: float) -> float:
    """The theorem's, for one cluster, of the delays that occurred. Blocks share the variance evenly."""
    stages = list(outcome.staleness.values())
    made = min(len(each) for each in stages)
    late = np.stack([each[:made] for each in stages], axis=2)
    return Promise(problem, sums(of_one_cluster(late), [1 / len(stages)] * len(stages))).bound(step)


def rate(lengths: Sequence[int], real: Floats, plain: Floats, bounds: Sequence[float]) -> Found:
    over = max(float(row.mean()) / bound for row, bound in zip(real, bounds, strict=True))
    promised = all(map(math.isfinite, bounds))
    ratio = interval(np.log(real / plain).mean(axis=0))
    ratio = Interval(*(math.exp(value) for value in (ratio.mean, ratio.low, ratio.high)))
    slopes = [slopes_of(lengths, errors) for errors in (real, plain)]
    flatter = interval(slopes[0] - slopes[1])
    last = float(np.log(real[-1].mean() / real[-2].mean()) / math.log(lengths[-1] / lengths[-2]))
    claims = [
        Claim(
            "bound",
            "every measured point over the bound with estimated constants, at most",
            "< 1",
            f"{over:.3g}" if promised else NO_BOUND,
            over < 1 if promised else None,
        ),
        Claim(
            "staleness 1",
            f"error over that of SGD without delay, K = {lengths[0]} to {lengths[-1]}",
            f"upper end of the 95 % interval <= {ALIKE}",
            str(ratio),
            ratio.high <= ALIKE,
        ),
        Claim(
            "slope",
            "slope of log error over log K, less that of SGD without delay",
            f"upper end of the 95 % interval <= {FLATTER_BY}",
            f"{flatter}; the slope itself {slopes[0].mean():.3g}, between the last two K {last:.3g}",
            flatter.high <= FLATTER_BY,
        ),
    ]
    rows: list[list[Cell]] = [
        [length, str(interval(a)), str(interval(b)), _shown(bound)]
        for length, a, b, bound in zip(lengths, real, plain, bounds, strict=True)
    ]
    table = Table(
        "digits, one cluster of two stages", ["K", "program (95 %)", "no delay (95 %)", "bound, estimated"], rows
    )
    x = [float(length) for length in lengths]
    series = [
        Series("the program", x, list(real.mean(axis=1))),
        Series("no delay", x, list(plain.mean(axis=1))),
    ]
    if promised:
        series.append(Series("bound, estimated", x, list(bounds)))
    return claims, [table], [Panel("Program: rate", "K", "mean ‖∇f‖²", series, log_x=True, log_y=True)]


def _shown(bound: float) -> Cell:
    return bound if math.isfinite(bound) else NO_BOUND


def slopes_of(lengths: Sequence[int], errors: Floats) -> Floats:
    """(seeds,): of log error against log K. `errors`: (lengths, seeds)."""
    x = np.log(np.asarray(lengths, dtype=float))
    x = x - x.mean()
    return np.asarray((x[:, None] * np.log(errors)).sum(axis=0) / (x**2).sum(), dtype=np.float64)


def characters(lengths: Sequence[int]) -> Found:
    """A GPT in four stages, whose first is up to three updates late."""
    real, plain, bounds = by_length("characters", lengths, 2, stages=4, staleness=3)
    ratio = float(np.exp(np.log(real / plain).mean()))
    claim = Claim(
        "characters",
        "error of a GPT in four stages over that of SGD without delay, geometric mean",
        f"<= {ALIKE}",
        f"{ratio:.3g}",
        ratio <= ALIKE,
    )
    rows: list[list[Cell]] = [
        [length, float(a.mean()), float(b.mean()), _shown(bound)]
        for length, a, b, bound in zip(lengths, real, plain, bounds, strict=True)
    ]
    return [claim], [Table("characters, four stages", ["K", "program", "no delay", "bound, estimated"], rows)], []


def by_ray(problem: Problem) -> Found:
    """One training for each of the questions, by `ravnest run` with Ray, beside the same one with forks."""
    step = best_step(problem, BY_RAY)
    asked = {
        "one cluster": Trial("digits", BY_RAY, step),
        "two clusters": Trial("digits", BY_RAY, best_step(problem, BY_RAY, 2), clusters=2, round=4),
        "max_staleness 16": Trial("digits", BY_RAY, step, staleness=16),
    }
    rows: list[list[Cell]] = []
    ratios = []
    for name, trial in asked.items():
        forked, ray = train(trial), train(replace(trial, ray=True))
        ratios.append(ray.error / forked.error)
        rows.append([name, ray.error, forked.error, ratios[-1], ray.oldest, forked.oldest])
    claim = Claim(
        "ray",
        f"error of trainings by `ravnest run` with Ray over that with forks, of one seed: {', '.join(asked)}",
        f"within {RAY_WITHIN:.0%} of 1",
        ", ".join(f"{ratio:.3g}" for ratio in ratios),
        all(abs(ratio - 1) <= RAY_WITHIN for ratio in ratios),
    )
    columns = ["training", "by Ray", "by forks", "over it", "largest delay, Ray", "largest delay, forks"]
    return [claim], [Table(f"`ravnest run` with Ray beside forks, digits, K = {BY_RAY}", columns, rows)], []
