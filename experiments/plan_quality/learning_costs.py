"""Part `costs`: what staleness, rounds and clusters cost in learning, and the planner's constants that follow.

The objective (cluster_planner/predict/objective.py) counts a sample for 1 / (1 + cost), where

    cost = STALENESS_COST · τ                       τ: mean staleness, in updates
    cost = ROUND_COST · (C − 1) · log2(1 + h)       C clusters, h updates apart

So it says that a fleet needs 1 + cost times the samples to come to the same loss. They are counted here: a GPT on
characters and a convolutional network on digits are trained to a loss in many ways, each at the learning rate that is
best for it. The constants are fitted to the ratios: c minimises Σ ((ratio − 1 − c·x) / ratio)². Each seed has a fit of
its own, which gives the interval.
"""

import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from cluster_planner.predict.objective import ROUND_COST, STALENESS_COST
from experiments.harness.report import Cell, Claim, Panel, Part, Series, Table
from experiments.pipeline.quality import margin
from experiments.pipeline.tasks import SHAKESPEARE, Characters, Digits, Task
from experiments.plan_quality.learning_runs import Curve, Look, in_rounds, reached, smoothed, stale

LAG = 1
MISFIT = 0.25
LONGEST = 8.0
"""How many times the updates of one cluster without staleness any training is given."""
STAGES = (3, 5, 9)
FLEETS = ((2, 4), (4, 1), (4, 16), (8, 4))
"""Clusters, and updates of each between two rounds."""
EVERY = "all tasks alike"
KINDS = {"STALENESS_COST": STALENESS_COST, "ROUND_COST": ROUND_COST}


@dataclass(frozen=True)
class Studied:
    """One task: it is learned to the loss that one cluster without staleness has in each seed after `updates`, with a
    look at the loss each `every` updates. `rate`: where the search for the best learning rate begins.
    """

    task: Task
    updates: int
    every: int
    rate: float
    seeds: Sequence[int]
    stages: Sequence[int] = STAGES
    fleets: Sequence[tuple[int, int]] = FLEETS


@dataclass(frozen=True)
class Way:
    """A way of training: the constant it is told by, its term x in the objective's cost, and its curve by rate."""

    constant: str
    words: tuple[str, str]
    x: float
    curve: Callable[[float], Curve]


@dataclass(frozen=True)
class Measured:
    """What a way needed, of what one cluster without staleness needs to the same loss: for each seed a ratio."""

    way: Way
    rate: float
    ratios: Sequence[float]
    early: Sequence[float]
    """The same to the loss that one cluster has after half the updates."""


def measure(*, quick: bool) -> Part:
    """Train every task in every way, and fit."""
    tasks = studied(quick=quick)
    return part_of({name: _measured(name, one) for name, one in tasks.items()}, _notes(tasks))


def studied(*, quick: bool) -> dict[str, Studied]:
    """What is trained."""
    digits = Studied(Digits(batch=8), 150, 10, 2e-3, range(4))
    if quick:
        return {"digits": replace(digits, updates=20, seeds=range(2), stages=STAGES[:1], fleets=FLEETS[:1])}
    gpt = Characters(SHAKESPEARE, layers=2, width=16, context=16, batch=16)
    return {"characters": Studied(gpt, 400, 40, 8e-3, range(4)), "digits": digits}


def ways(one: Studied) -> list[Way]:
    """All ways in which a task is trained."""
    found = []
    for stages in one.stages:
        delay = (stages - 1) / 2
        curve = partial(stale, one.task, one.seeds, stages=stages, every=one.every)
        found.append(Way("STALENESS_COST", (f"{stages} stages", f"τ = {delay:g}"), delay, curve))
    for clusters, updates in one.fleets:
        apart = (1 + LAG) * updates
        rounds = partial(in_rounds, one.task, one.seeds, clusters=clusters, updates=updates, lag=LAG, every=one.every)
        words = (f"{clusters} clusters", f"h = {apart}")
        found.append(Way("ROUND_COST", words, (clusters - 1) * math.log2(1 + apart), rounds))
    return found


def _measured(name: str, one: Studied) -> list[Measured]:
    curves: dict[float, list[Look]] = {}

    def loss_at(rate: float, _: float) -> float:
        curve = stale(one.task, one.seeds, rate, stages=1, every=one.every)
        looks = one.updates // one.every
        curves[rate] = list(islice(curve, looks))
        whole = len(curves[rate]) == looks
        return max(smoothed(curves[rate], one.every)[1]) if whole else math.inf

    best = best_rate(loss_at, one.rate)
    plain = curves[best]
    targets = [max(smoothed(plain[:looks], one.every)[1]) for looks in (len(plain) // 2, len(plain))]
    said = ", ".join(f"{target:.3f}" for target in targets)
    print(f"  {name}: {said} nats within {one.updates} updates at {best:g}", file=sys.stderr, flush=True)
    early, late = (partial(reached, target=target, seeds=len(one.seeds), every=one.every) for target in targets)
    found = []
    for way in ways(one):

        def needed(rate: float, most: float, way: Way = way) -> float:
            curves[rate] = []
            # The last seed may need more than their mean.
            return statistics.fmean(late(_noted(way.curve(rate), curves[rate]), most=1.25 * most))

        rate = best_rate(needed, best, LONGEST * one.updates)
        ratios = [
            [updates / base for updates, base in zip(reach(curves[rate]), reach(plain), strict=True)]
            for reach in (late, early)
        ]
        found.append(Measured(way, rate, *ratios))
        print(
            f"  {name}, {', '.join(way.words)}: {statistics.fmean(ratios[0]):.3f} at {rate:g}",
            file=sys.stderr,
            flush=True,
        )
    return found


def _noted(curve: Curve, looks: list[Look]) -> Curve:
    for look in curve:
        looks.append(look)
        yield look


def best_rate(cost: Callable[[float, float], float], start: float, most: float = math.inf) -> float:
    """The rate of least cost among those that are a power of two from `start`, by going on while it falls.

    `cost` takes a rate and the cost from which on it need not be known, which grows no more once it is there.
    """
    best, least = start, cost(start, most)
    for factor in (2.0, 0.5):
        rate = best * factor
        while (tried := cost(rate, min(most, least))) < least:
            best, least, rate = rate, tried, rate * factor
    return best


def fitted(points: Sequence[tuple[float, float]]) -> float:
    """The c for which 1 + c·x is nearest to the ratios: by the squares of what it misses of each."""
    above = sum(x * (ratio - 1) / ratio**2 for x, ratio in points)
    return above / sum(x**2 / ratio**2 for x, ratio in points)


def part_of(found: Mapping[str, Sequence[Measured]], notes: Sequence[str]) -> Part:
    """The part of the report, from what was measured of each task."""
    rows: list[list[Cell]] = []
    constants: list[list[Cell]] = []
    claims, panels = [], []
    for constant, held in KINDS.items():
        mine = {name: [one for one in each if one.way.constant == constant] for name, each in found.items()}
        fits = {name: _fits([(one.way.x, one.ratios) for one in each]) for name, each in mine.items()}
        for name, each in mine.items():
            early = _fits([(one.way.x, one.early) for one in each])
            for when, fit in (("half the updates", early), ("all updates", fits[name])):
                constants.append([constant, name, when, statistics.fmean(fit), margin(fit), len(fit)])
        middle = statistics.fmean(statistics.fmean(fit) for fit in fits.values())
        half = math.sqrt(sum(margin(fit) ** 2 for fit in fits.values())) / len(fits)
        constants.append([constant, EVERY, "all updates", middle, half, None])
        by_task = ", ".join(f"{name} {statistics.fmean(fit):.3g}" for name, fit in fits.items())
        misfits = []
        for name, each in mine.items():
            own = statistics.fmean(fits[name])
            for one in each:
                mean, fit = statistics.fmean(one.ratios), 1 + own * one.way.x
                misfits.append(mean / fit - 1)
                rows.append([name, *one.way.words, one.rate, mean, margin(one.ratios), fit, 1 + held * one.way.x])
        worst = max(misfits, key=abs)
        claims += [
            Claim(
                constant,
                f"the planner's {constant} is the mean of what was fitted to the tasks",
                f"within the 95 % interval over seeds: {middle:.3g} ± {half:.2g}",
                f"{held:g}; by task {by_task}",
                abs(held - middle) <= half,
            ),
            Claim(
                f"form of {constant}",
                "samples needed over those by the formula with each task's own constant, at worst",
                f"within {MISFIT:.0%}",
                f"{worst:+.0%}",
                abs(worst) <= MISFIT,
            ),
        ]
        panels.append(_panel(constant, mine))
    columns = ["task", "way", "apart", "rate", "times the samples", "half of its 95 % interval"]
    columns += ["by the task's own constant", "by the planner's"]
    fitted_columns = ["constant", "task", "to the loss after", "fitted", "half of its 95 % interval", "seeds"]
    return Part(
        "costs",
        "What staleness, rounds and clusters cost in learning",
        claims,
        [
            Table("Fitted constants", fitted_columns, constants),
            Table("Samples to the same loss, over those of one cluster without staleness", columns, rows),
        ],
        panels,
        notes,
    )


def _fits(points: Sequence[tuple[float, Sequence[float]]]) -> list[float]:
    """A fit for each seed."""
    return [fitted([(x, ratios[seed]) for x, ratios in points]) for seed in range(len(points[0][1]))]


def _panel(constant: str, found: Mapping[str, Sequence[Measured]]) -> Panel:
    lines = []
    for name, each in found.items():
        points = sorted((one.way.x, statistics.fmean(one.ratios)) for one in each)
        lines.append(Series(name, [x for x, _ in points], [ratio for _, ratio in points]))
    x_label = "τ" if constant == "STALENESS_COST" else "(C − 1) · log2(1 + h)"
    return Panel(f"Samples to the same loss: {constant}", x_label, "times the samples", lines)


def _notes(tasks: Mapping[str, Studied]) -> list[str]:
    sizes = "; ".join(
        f"{one.task.name}, to the loss after {one.updates} updates, {len(one.seeds)} seeds" for one in tasks.values()
    )
    return [
        f"{sizes}. AdamW with its default correction (look_ahead), a constant rate after a warm-up;"
        " the best rate of each way, by the mean over seeds, is found among powers of two.",
        "Stages update at each micro-batch: the first is stages − 1 updates late, the last is not, and τ is the mean. "
        f"Clusters average what they have changed, without an outer optimizer, at a lag of {LAG}: h is twice the "
        "updates of each between two rounds. Samples are those of the whole fleet. No run is timed.",
        "A further cluster enlarges the batch behind a common step, which costs most while a training is young: these "
        "are short, so ROUND_COST is what the beginning of a training costs, and more than a long one.",
    ]
