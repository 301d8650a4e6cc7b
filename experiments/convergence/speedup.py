"""Part `speedup`: how many updates does each of C clusters need to reach an error, beside one cluster?

Two fleets: one that averages often, for which the theorem promises a linear speed-up up to 8 clusters, and one whose
rounds are long, for which it does not. Efficiency is K(1) / (C · K(C)), K from a grid of octaves by interpolation, each
run with the theorem's step for its own K and C.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.convergence import fleets
from experiments.convergence.cases import SEEDS, Case, table_of
from experiments.convergence.data import tumours
from experiments.convergence.fitting import crossing, percentiles, resampled
from experiments.convergence.objectives import Logistic, Objective, Quadratic
from experiments.convergence.schedule import Floats, Ints
from experiments.report import Cell, Claim, Panel, Part, Series, Table

LEAST = 0.9
PROMISED_UP_TO = 8
RESAMPLED = 400
NOISE = 1024.0
"""σ² of the quadratic here: so much that the theorem's transient is short, and its promise reaches 8 clusters."""
ROUNDS = {"short rounds": 2, "long rounds": 64}
"""Updates of each cluster in a round."""


@dataclass(frozen=True)
class Sizes:
    """How many clusters, and about how many updates of the fleet reach the error."""

    clusters: Sequence[int]
    total: int
    names: Sequence[str]
    seeds: int = SEEDS


def sizes(*, quick: bool) -> Sizes:
    """Those of the report, or small ones."""
    if quick:
        return Sizes((1, 2, 4, 8), 2**11, ("quadratic",), 16)
    return Sizes((1, 2, 4, 8, 16, 32), 2**14, ("quadratic", "logistic"))


@dataclass(frozen=True)
class Found:
    """Of one objective and one length of rounds, by number of clusters."""

    clusters: Sequence[int]
    needed: Sequence[float]
    efficiency: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    promised: Sequence[float]
    """What the bound says: of the K at which it falls below the value it has for one cluster."""
    target: float


def run(*, quick: bool) -> Part:
    """Measure and judge."""
    size = sizes(quick=quick)
    rows: list[list[Cell]] = []
    claims: list[Claim] = []
    panels: list[Panel] = []
    for name in size.names:
        series = [Series("linear", [1.0, float(size.clusters[-1])], [1.0, 1.0])]
        for kind, length in ROUNDS.items():
            found = efficiency(name, length, size)
            for place, count in enumerate(found.clusters):
                values = (found.needed[place], found.efficiency[place], found.low[place], found.high[place])
                reached = math.isfinite(found.needed[place])
                cells: list[Cell] = list(values) if reached else [None, _said(found, place), None, None]
                promised = found.promised[place]
                rows.append([name, kind, count, *cells, promised if promised else None])
            x = [float(count) for count in found.clusters]
            series.append(Series(kind, x, *map(_drawn, (found.efficiency, found.low, found.high))))
            series.append(Series(f"{kind}: from the bound", x, _drawn(found.promised)))
            claims += _judged(name, kind, found)
        panels.append(Panel(f"Speed-up: {name}", "clusters", "efficiency", series, log_x=True, target=LEAST))
    columns = ["objective", "rounds", "C", "K to ε", "efficiency", "low", "high", "from the bound"]
    return Part(
        "speedup",
        "Speed-up",
        claims,
        [
            Table(
                "Updates of each cluster to reach ε, and efficiency K(1) / (C · K(C)) with its 95 % interval",
                columns,
                rows,
            )
        ],
        panels,
        [
            f"ε is what one cluster reaches with {size.total} updates. {size.seeds} seeds; intervals by resampling "
            f"them {RESAMPLED} times. Equal clusters of two stages with a staleness of 1 at the first; max_lag 1; an "
            f"averaging takes half a round. Short rounds: {ROUNDS['short rounds']} updates of each cluster; long "
            f"ones: {ROUNDS['long rounds']}. The quadratic has σ² = {NOISE:g} here.",
            "From the bound: the same ratio, of the K at which the theorem's bound reaches the value that it has for "
            f"one cluster and {size.total} updates. It promises {LEAST} only where it says so; training may do better.",
        ],
    )


def efficiency(name: str, round_length: int, size: Sizes) -> Found:
    """Trainings for each C around the K that linear speed-up asks for, and where their error crosses the target."""
    means: list[tuple[list[float], Floats]] = []
    bounds: list[tuple[list[float], list[float]]] = []
    for count in size.clusters:
        shape = fleets.equal(count, stages=2, staleness=1, round=round_length)
        lengths = sorted({max(4 * count, int(size.total * factor)) for factor in _FACTORS})
        case = Case(_objective(name), fleets.schedule(shape, lengths[-1]))
        errors = table_of(case.train(lengths, seeds=size.seeds, label=f"{name}, {count} clusters, h = {round_length}"))
        each = [length / count for length in lengths]
        means.append((each, errors))
        bounds.append((each, [case.promise(length).bound() for length in lengths]))
    place_of_one = list(means[0][0]).index(float(size.total))
    everyone = np.arange(size.seeds, dtype=np.int64)
    needed, target = _needed(means, place_of_one, [everyone] * len(means))
    random = np.random.default_rng(0)
    draws = [resampled(RESAMPLED, size.seeds, random) for _ in means]
    again = [_needed(means, place_of_one, [draw[number] for draw in draws])[0] for number in range(RESAMPLED)]
    intervals = [percentiles([_efficiency(one, size.clusters)[place] for one in again]) for place in range(len(means))]
    level = bounds[0][1][place_of_one]
    promised = [crossing(each, values, level, rising=False) for each, values in bounds]
    return Found(
        size.clusters,
        needed,
        _efficiency(needed, size.clusters),
        [low for low, _ in intervals],
        [high for _, high in intervals],
        _efficiency(promised, size.clusters),
        target,
    )


_FACTORS = (0.5, 1.0, 2.0)
"""Of the total that linear speed-up asks for: how many updates of the fleet are tried."""


def _objective(name: str) -> Objective:
    return Quadratic(sigma_sq=NOISE) if name == "quadratic" else Logistic(*tumours())


def _needed(
    means: Sequence[tuple[Sequence[float], Floats]], place_of_one: int, chosen: Sequence[Ints]
) -> tuple[list[float], float]:
    """K of each C to the error that one cluster has at `place_of_one`, from the seeds that are `chosen` for each."""
    target = float(means[0][1][place_of_one, chosen[0]].mean())
    found = [
        crossing(lengths, list(errors[:, seeds].mean(axis=1)), target, rising=False)
        for (lengths, errors), seeds in zip(means, chosen, strict=True)
    ]
    return found, target


def _efficiency(needed: Sequence[float], clusters: Sequence[int]) -> list[float]:
    return [needed[0] / (count * each) for count, each in zip(clusters, needed, strict=True)]


def _judged(name: str, kind: str, found: Found) -> list[Claim]:
    if kind == "short rounds":
        up_to = [place for place, count in enumerate(found.clusters) if 1 < count <= PROMISED_UP_TO]
        worst = min(up_to, key=lambda place: found.efficiency[place])
        return [
            Claim(
                f"{name}, {kind}",
                f"efficiency up to {PROMISED_UP_TO} clusters",
                f">= {LEAST}",
                f"{_said(found, worst)} at C = {found.clusters[worst]}; from the bound {found.promised[up_to[-1]]:.2g}",
                found.efficiency[worst] >= LEAST,
            )
        ]
    last = len(found.clusters) - 1
    return [
        Claim(
            f"{name}, {kind}",
            f"where the theorem promises no linear speed-up ({found.promised[last]:.2g}), {found.clusters[last]} "
            "clusters depart from it",
            f"upper end of the interval < {LEAST}",
            _said(found, last),
            found.high[last] < LEAST,
        )
    ]


def _said(found: Found, place: int) -> str:
    if not math.isfinite(found.needed[place]):
        return f"ε not reached with {_FACTORS[-1]:g} times the updates: below {1 / _FACTORS[-1]:g}"
    return f"{found.efficiency[place]:.3g} ({found.low[place]:.3g} to {found.high[place]:.3g})"


def _drawn(values: Sequence[float]) -> list[float]:
    return [value if math.isfinite(value) else 0.0 for value in values]
