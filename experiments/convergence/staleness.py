"""Part `staleness`: from where on do old gradients, long rounds and lag hurt, and what do corrections give back?

All with the step that knows nothing of staleness (γ₁ of the theorem), so that what grows is staleness's own. The
threshold is where the error is LEVEL times that without it; predicted: where the theorem's bound is, or where the step
is no longer admitted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.convergence import fleets
from experiments.convergence.cases import SEEDS, Case, table_of
from experiments.convergence.corrections import WAYS, train_corrected
from experiments.convergence.fitting import crossing
from experiments.convergence.objectives import Quadratic, Tilted
from experiments.convergence.theorem import Promise
from experiments.harness.report import Cell, Claim, Panel, Part, Series, Table

LEVEL = 1.5
ROUND_LEVEL = 1.2
"""For rounds, which cost less."""
OBJECTIVE = Quadratic(sigma_sq=2.0)
IN_ROUNDS = Tilted(sigma_sq=2.0)
"""Of a quadratic the mean over clusters does not feel the length of rounds: its gradient is linear."""
STEEPEST, FLATTEST = 0.65, 0.35
"""Of the threshold's growth with K: √K within these."""
ROUND_CLUSTERS = 8
LAGS = (1, 2, 4, 8)
LAG_ROUND = 8
MOST_DRAWN = 1e3


@dataclass(frozen=True)
class Sizes:
    """K of the delays and of the rounds, and what is tried."""

    lengths: Sequence[int]
    delays: Sequence[int]
    round_length: int
    rounds: Sequence[int]
    lags: Sequence[int]
    corrected: Sequence[int]
    seeds: int = SEEDS


def sizes(*, quick: bool) -> Sizes:
    """Those of the report, or small ones."""
    if quick:
        return Sizes((2**6, 2**8, 2**10), (0, 2, 4, 8, 16, 32, 64), 2**8, (1, 4, 16, 64), (1, 8, 32), (0, 64), 16)
    octaves = (1, 2, 4, 8, 16, 32, 64, 128)
    return Sizes((2**8, 2**10, 2**12), (0, *octaves), 2**10, octaves, octaves[:-1], (0, 8, 32, 64, 128))


def run(*, quick: bool) -> Part:
    """Measure and judge."""
    size = sizes(quick=quick)
    claims, tables, panels = judged_delays(size)
    for more in (judged_rounds(size), judged_lag(size), _lags(size), _corrections(size)):
        claims, tables, panels = claims + more[0], tables + more[1], panels + more[2]
    return Part(
        "staleness",
        "Staleness",
        claims,
        tables,
        panels,
        [
            f"{size.seeds} seeds, steps that know nothing of staleness. T: quadratic with σ² = "
            f"{OBJECTIVE.sigma_sq:g}, one cluster of two stages; the first is T updates late, the last is not. "
            f"Threshold: error {LEVEL} times that without delay, between points by interpolation.",
            "Rounds and lag: the tilted objective (of a quadratic the mean over clusters does not feel rounds), "
            f"{ROUND_CLUSTERS} equal clusters of two stages, staleness 1, K = {size.round_length}. Threshold: error "
            f"{ROUND_LEVEL} times that of the shortest rounds or the least lag. Lag: averagings so slow that it is "
            f"used up; once at one step, with the shortest rounds, and once with {LAG_ROUND} updates to a round and "
            "the theorem's step, which the lag makes smaller.",
            f"Corrections: K = {size.lengths[-1]}; with momentum the rate is (1 − momentum) times as much. They are "
            "outside the theorem.",
            f"Pictures: a line that leaves upwards ends at {MOST_DRAWN:g}.",
        ],
    )


Found = tuple[list[Claim], list[Table], list[Panel]]


def judged_delays(size: Sizes) -> Found:
    cases = {delay: _pipeline(delay, size.lengths[-1]) for delay in size.delays}
    steps = [cases[0].promise(length).best_step for length in size.lengths]
    errors = {
        delay: table_of(case.train(size.lengths, steps, seeds=size.seeds, label=f"T = {delay}")).mean(axis=1)
        for delay, case in cases.items()
    }
    rows: list[list[Cell]] = []
    series, measured, predicted = [], [], []
    late = [float(delay) for delay in size.delays if delay]
    for place, (length, step) in enumerate(zip(size.lengths, steps, strict=True)):
        ratio = [float(errors[int(delay)][place] / errors[0][place]) for delay in late]
        promises = [cases[int(delay)].promise(length) for delay in late]
        bound = _over(promises, cases[0].promise(length), step)
        measured.append(crossing(late, ratio, LEVEL, rising=True))
        predicted.append(crossing(late, bound, LEVEL, rising=True))
        rows += [
            [length, int(delay), step, _finite(one), _finite(two)]
            for delay, one, two in zip(late, ratio, bound, strict=True)
        ]
        series.append(Series(f"K = {length}", *until_broken(late, ratio)))
    reached = [place for place, value in enumerate(measured) if math.isfinite(value)]
    growth = math.nan
    if len(reached) > 1:
        logs = np.log([[size.lengths[place], measured[place]] for place in reached])
        growth = float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])
    said = ", ".join(
        f"K = {length}: {one:.3g} (predicted {two:.3g})"
        for length, one, two in zip(size.lengths, measured, predicted, strict=True)
    )
    claims = [
        Claim(
            "threshold of T",
            f"T at which the error is {LEVEL} times that without delay, beside the predicted one",
            "not below the predicted",
            said,
            all(one >= two for one, two in zip(measured, predicted, strict=True)),
        ),
        Claim(
            "threshold of T grows",
            "as which power of K?",
            f"1/2: within {FLATTEST} and {STEEPEST}",
            f"{growth:.3g}" if len(reached) == len(measured) else f"{growth:.3g}, of {len(reached)} thresholds reached",
            FLATTEST <= growth <= STEEPEST if len(reached) == len(measured) else None,
        ),
    ]
    table = Table(
        "Error over that without delay", ["K", "T at the first stage", "step", "measured", "bound over bound"], rows
    )
    series += _predicted(predicted, LEVEL)
    panel = Panel("Staleness T", "T", "error over no delay", series, log_x=True, log_y=True, target=LEVEL)
    return claims, [table], [panel]


@dataclass(frozen=True)
class Sweep:
    """What part `staleness` varies of a fleet that averages, its step unchanged: values, and the fleets they make."""

    name: str
    of_what: str
    title: str
    values: Sequence[int]
    cases: Sequence[Case]


def judged_rounds(size: Sizes) -> Found:
    cases = [_fleet(h, 1, 0.5, size) for h in size.rounds]
    return _swept(Sweep("h", "updates to a round", "Length of rounds h", size.rounds, cases), size)


def judged_lag(size: Sizes) -> Found:
    """At the shortest rounds, where the bound admits the step for a while."""
    cases = [_fleet(1, lag, lag + 0.5, size) for lag in size.lags]
    return _swept(Sweep("lag", "max_lag", "Lag at one step", size.lags, cases), size)


def _swept(sweep: Sweep, size: Sizes) -> Found:
    whole = ROUND_CLUSTERS * size.round_length
    promises = [case.promise(whole) for case in sweep.cases]
    step = promises[0].best_step
    errors = [
        _error(case, whole, step, size, f"{sweep.name} = {value}")
        for case, value in zip(sweep.cases, sweep.values, strict=True)
    ]
    ratio = [error / errors[0] for error in errors]
    bound = _over(promises, promises[0], step)
    x = [float(value) for value in sweep.values]
    measured, predicted = (crossing(x, values, ROUND_LEVEL, rising=True) for values in (ratio, bound))
    rows: list[list[Cell]] = [
        [value, _behind(case), promise.sums.error, math.sqrt(promise.sums.stability), _finite(one), _finite(two)]
        for value, case, promise, one, two in zip(sweep.values, sweep.cases, promises, ratio, bound, strict=True)
    ]
    claim = Claim(
        f"threshold of {sweep.name}",
        f"{sweep.of_what} at which the error is {ROUND_LEVEL} times that of the smallest, beside the predicted",
        "not below the predicted",
        f"{measured:.3g} (predicted {predicted:.3g})",
        measured >= predicted,
    )
    columns = [sweep.name, "rounds behind (mean)", "S̄", "√D", "error over the first", "bound over the first's"]
    series = [Series("measured", *until_broken(x, ratio)), *_predicted([predicted], ROUND_LEVEL)]
    panel = Panel(sweep.title, sweep.of_what, "error over the first", series, log_x=True, target=ROUND_LEVEL)
    return [claim], [Table(f"{sweep.title}, {ROUND_CLUSTERS} clusters", columns, rows)], [panel]


def _lags(size: Sizes) -> Found:
    whole = ROUND_CLUSTERS * size.round_length
    rows: list[list[Cell]] = []
    over = []
    for lag in LAGS:
        case = _fleet(LAG_ROUND, lag, lag + 0.5, size)
        promise = case.promise(whole)
        error = _error(case, whole, promise.step, size, f"lag {lag}")
        over.append(error / promise.bound())
        rows.append([lag, _behind(case), promise.sums.error, promise.step, error, promise.bound()])
    claim = Claim(
        "lag",
        f"error over the bound with max_lag {LAGS[0]} to {LAGS[-1]}, at most",
        "< 1",
        f"{max(over):.3g}",
        max(over) < 1,
    )
    columns = ["max_lag", "rounds behind (mean)", "S̄", "step of the theorem", "measured", "bound"]
    return [claim], [Table("Lag with the theorem's step", columns, rows)], []


def _corrections(size: Sizes) -> Found:
    length = size.lengths[-1]
    rows: list[list[Cell]] = []
    found: dict[str, list[float]] = {way.name: [] for way in WAYS}
    for delay in size.corrected:
        case = _pipeline(delay, length)
        step = case.promise(length).best_step
        for way in WAYS:
            found[way.name].append(float(train_corrected(case, way, length, step, seeds=size.seeds).mean()))
    for way in WAYS:
        base = found[way.name][0]
        rows += [
            [way.name, delay, _finite(error), _finite(error / base)]
            for delay, error in zip(size.corrected, found[way.name], strict=True)
        ]
    plain, _, momentum, ahead = ([error / found[way.name][0] for error in found[way.name]] for way in WAYS)
    claim = Claim(
        "look_ahead",
        f"growth of the error from T = 0 to T = {size.corrected[-1]}, beyond the threshold, with momentum 0.9: "
        "look_ahead beside none",
        "less",
        f"{ahead[-1]:.3g} beside {momentum[-1]:.3g} (plain SGD {plain[-1]:.3g})",
        ahead[-1] < momentum[-1],
    )
    series = [Series(way.name, *until_broken([float(d) for d in size.corrected], found[way.name])) for way in WAYS]
    panel = Panel("Corrections", "T at the first stage", "mean ‖∇f‖²", series, log_y=True)
    table = Table("Corrections", ["optimizer", "T", "mean ‖∇f‖²", "over T = 0"], rows)
    return [claim], [table], [panel]


def _pipeline(delay: int, updates: int) -> Case:
    return Case(OBJECTIVE, fleets.schedule(fleets.Shape(stages=2, staleness=delay), updates))


def _fleet(round_length: int, lag: int, ring_rounds: float, size: Sizes) -> Case:
    shape = fleets.equal(ROUND_CLUSTERS, stages=2, staleness=1, round=round_length, lag=lag, ring_rounds=ring_rounds)
    return Case(IN_ROUNDS, fleets.schedule(shape, ROUND_CLUSTERS * size.round_length))


def _behind(case: Case) -> float:
    """Rounds that a point has not merged, of those before its own, on average."""
    return float((case.schedule.round[:, None, None] - 1 - case.schedule.merged).mean())


def _error(case: Case, updates: int, step: float, size: Sizes, label: str) -> float:
    return float(case.train([updates], [step], seeds=size.seeds, label=label)[0].virtual.mean())


def _over(promises: Sequence[Promise], base: Promise, step: float) -> list[float]:
    """Bounds over that of `base`; where not even its step is admitted, over its terms that know no staleness."""
    whole = base.bound(step)
    return [promise.bound(step) / (whole if math.isfinite(whole) else base.fresh(step)) for promise in promises]


def _finite(value: float) -> Cell:
    return float(value) if math.isfinite(value) else "diverged or not admitted"


def until_broken(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """What is drawn: up to the first y above MOST_DRAWN, and that one there."""
    beyond = next((place + 1 for place, value in enumerate(y) if value > MOST_DRAWN), len(y))
    return list(x[:beyond]), [min(value, MOST_DRAWN) for value in y[:beyond]]


def _predicted(thresholds: Sequence[float], level: float) -> list[Series]:
    known = [threshold for threshold in thresholds if math.isfinite(threshold)]
    return [Series("threshold, predicted", known, [level] * len(known))] if known else []
