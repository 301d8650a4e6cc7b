"""More clusters, and ever larger windows, of the real program: two sections of part `program`.

Decides how a delay is judged: by what the stages reported, not by what the job admits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from experiments.convergence.fitting import crossing
from experiments.convergence.program_plain import best_step, plain_error
from experiments.convergence.program_rate import ALIKE, Found
from experiments.convergence.program_run import Outcome, Trial, train
from experiments.convergence.schedule import Floats
from experiments.convergence.theorem import Problem
from experiments.harness.report import Cell, Claim, Panel, Series, Table

LEVEL = 1.5
"""Error over that without delay at which staleness hurts: as in part `staleness`."""
ROUND = 4
"""Updates of each cluster in a round."""
EVERY = 4
"""Micro-batches of an update, in the training that accumulates."""
WAYS = (("none", 0.0), ("delay_adaptive", 0.0), ("none", 0.9), ("look_ahead", 0.9))


def clusters(problem: Problem, counts: Sequence[int], whole: int, lengths: Sequence[int], real: Floats) -> Found:
    """Beside one process that takes the samples of all clusters in each update, as synchronous clusters would.

    `whole`: updates of the fleet. `real`: errors of one cluster by `lengths`, (lengths, seeds), which tell how many
    updates it needs for the same error. That is no claim: so short runs have no linear speed-up in any theory.
    """
    one = list(real.mean(axis=1))
    rows: list[list[Cell]] = []
    ratios: list[float] = []
    for count in (count for count in counts if count > 1):
        each = max(lengths[0], whole // count)
        step = best_step(problem, each, count)
        trials = [Trial("digits", each, step, clusters=count, round=ROUND, seed=seed) for seed in range(real.shape[1])]
        outcomes = [train(trial) for trial in trials]
        joined = [replace(trial, clusters=1, update_samples=count * trial.update_samples) for trial in trials]
        plain = np.asarray([plain_error(trial) for trial in joined])
        ratios.append(_over(outcomes, plain))
        error = float(np.mean([outcome.error for outcome in outcomes]))
        needed = crossing([float(length) for length in lengths], one, error, rising=False)
        made = float(np.mean([sum(outcome.made.values()) for outcome in outcomes]))
        apart = max(max(outcome.made.values()) / min(outcome.made.values()) for outcome in outcomes)
        efficiency: Cell = needed / made if math.isfinite(needed) else "not reached"
        rows.append([count, each, step, _finite(error), float(plain.mean()), _finite(ratios[-1]), efficiency, apart])
    claim = Claim(
        "clusters",
        f"error of {', '.join(str(row[0]) for row in rows)} clusters over that of one process with all their samples "
        "in each update",
        f"<= {ALIKE}",
        ", ".join(f"{value:.3g}" for value in ratios),
        max(ratios) <= ALIKE,
    )
    columns = [
        "clusters",
        "K of each",
        "step",
        "program",
        "one process",
        "over it",
        "updates that one cluster needs, over all of theirs",
        "updates, most over least",
    ]
    return [claim], [Table(f"Clusters, digits, two stages each, a round every {ROUND} updates", columns, rows)], []


def delays(problem: Problem, updates: int, asked: Sequence[int], seeds: int, *, corrected: bool) -> Found:
    """One step, windows ever larger; then what corrections and accumulating do at the largest."""
    step = best_step(problem, updates)
    trials = [Trial("digits", updates, step, seed=seed) for seed in range(seeds)]
    plain = np.asarray([plain_error(trial) for trial in trials])
    threshold = math.sqrt(problem.whole_sigma_sq * updates / (8 * problem.smoothness * problem.gap))
    rows: list[list[Cell]] = []
    ages, ratios = [], []
    for delay in asked:
        outcomes = [train(replace(trial, staleness=delay)) for trial in trials]
        age, ratio = _age(outcomes), _over(outcomes, plain)
        ages.append(max(age, 1e-3))
        ratios.append(ratio)
        rows.append(["SGD, none", delay, 1, age, max(o.oldest for o in outcomes), _finite(ratio)])
    last = asked[-1]
    if corrected:
        accumulated = [train(replace(trial, staleness=last // EVERY, update_every=EVERY)) for trial in trials]
        oldest = max(o.oldest for o in accumulated)
        rows.append(["SGD, none", last // EVERY, EVERY, _age(accumulated), oldest, _finite(_over(accumulated, plain))])
        for correction, momentum in WAYS[1:]:
            some = [train(replace(t, staleness=last, correction=correction, momentum=momentum)) for t in trials]
            name = f"SGD, {f'momentum {momentum}, ' if momentum else ''}{correction}"
            rows.append([name, last, 1, _age(some), max(o.oldest for o in some), _finite(_over(some, plain))])
    measured = crossing(ages, ratios, LEVEL, rising=True)
    below = [ratio for age, ratio in zip(ages, ratios, strict=True) if age <= threshold]
    claims = [
        Claim(
            "below the threshold",
            f"error over that without delay, where the first stage's mean delay is below the predicted {threshold:.3g}",
            f"<= {ALIKE}",
            ", ".join(f"{ratio:.3g}" for ratio in below) or "no delay was so small",
            max(below) <= ALIKE if below else None,
        ),
        Claim(
            "threshold",
            f"mean delay of the first stage at which the error is {LEVEL} times that without delay",
            f"not below the predicted {threshold:.3g}",
            f"{measured:.3g}" if math.isfinite(measured) else f"not reached with {ages[-1]:.3g}",
            measured >= threshold if math.isfinite(measured) or ages[-1] > threshold else None,
        ),
    ]
    columns = ["optimizer", "max_staleness", "update_every", "mean delay, first stage", "largest", "over no delay"]
    shown = [place for place, ratio in enumerate(ratios) if math.isfinite(ratio)]
    series = [Series("measured", [ages[place] for place in shown], [ratios[place] for place in shown])]
    panel = Panel(
        "Program: staleness",
        "mean delay of the first stage",
        "error over no delay",
        series,
        log_x=True,
        log_y=True,
        target=LEVEL,
    )
    title = f"Delays, digits, K = {updates}, one step ({step:.3g})"
    return claims, [Table(title, columns, rows)], [panel]


def _age(outcomes: Sequence[Outcome]) -> float:
    """Mean delay of the first stage, in updates."""
    return float(np.mean([outcome.staleness["c0.s0"].mean() for outcome in outcomes]))


def _over(outcomes: Sequence[Outcome], plain: Floats) -> float:
    return float(np.mean([outcome.error for outcome in outcomes]) / plain.mean())


def _finite(value: float) -> Cell:
    return value if math.isfinite(value) else "diverged"
