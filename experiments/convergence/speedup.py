"""Part `speedup`: how many updates does each of C clusters need to reach an error, beside one cluster?

Two fleets: one that averages often, for which the theorem promises a linear speed-up up to some number of clusters (8,
with the quadratic), and one whose rounds are long, for which it does not. There its step is small, and that alone ends
the speed-up; so γ₁, which does not care, is tried as well. Efficiency is K(1) / (C · K(C)), K from a grid of octaves by
interpolation, each run with the step for its own K and C.
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
from experiments.convergence.objectives import Logistic, Objective, Quadratic, Tilted
from experiments.convergence.schedule import Floats, Ints
from experiments.harness.report import Cell, Claim, Panel, Part, Series, Table

LEAST = 0.9
PROMISED_UP_TO = 8
RESAMPLED = 400
NOISE = 1024.0
"""σ² of the quadratic here: so much that the theorem's transient is short, and its promise reaches 8 clusters."""
DRIFTING = 2.0
"""σ² of the tilted objective."""


@dataclass(frozen=True)
class Kind:
    """`round`: updates of each cluster in a round. `cautious`: with the theorem's step; otherwise with γ₁."""

    name: str
    round: int
    cautious: bool = True


SHORT, LONG, LONG_BOLD = Kind("short rounds", 2), Kind("long rounds", 64), Kind("long rounds, γ₁", 64, cautious=False)
KINDS = {"quadratic": (SHORT, LONG, LONG_BOLD), "logistic": (SHORT, LONG, LONG_BOLD), "tilted": (LONG_BOLD,)}


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
        return Sizes((1, 2, 4, 8), 2**11, ("quadratic", "tilted"), 16)
    return Sizes((1, 2, 4, 8, 16, 32), 2**14, tuple(KINDS))


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
        for kind in KINDS[name]:
            found = efficiency(name, kind, size)
            for place, count in enumerate(found.clusters):
                values = (found.needed[place], found.efficiency[place], found.low[place], found.high[place])
                reached = math.isfinite(found.needed[place])
                cells: list[Cell] = list(values) if reached else [None, _said(found, place), None, None]
                promised = found.promised[place]
                rows.append([name, kind.name, count, *cells, promised if promised else None])
            x = [float(count) for count in found.clusters]
            series.append(Series(kind.name, *_reached(x, found.efficiency, found.low, found.high)))
            if kind.cautious:
                series.append(Series(f"{kind.name}: from the bound", *_reached(x, found.promised)))
            claims += judged(name, kind, found)
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
            f"them {RESAMPLED} times, the same ones for each C. Equal clusters of two stages with a staleness of 1 at "
            "the first; max_lag 1; an averaging takes half a round. Short rounds: "
            f"{SHORT.round} updates of each cluster; long ones: {LONG.round}. The quadratic has σ² = {NOISE:g} here, "
            f"the tilted objective {DRIFTING:g}.",
            "From the bound: the same ratio, of the K at which the theorem's bound reaches the value that it has for "
            f"one cluster and {size.total} updates. It promises {LEAST} only where it says so; training may do better. "
            f"A line ends, and the table has no figure, where ε is not reached with {_FACTORS[-1]:g} times the "
            f"updates: efficiency below {1 / _FACTORS[-1]:g}.",
            "Steps are the theorem's, which long rounds make small, and that by itself ends the speed-up; γ₁ is the "
            "step that knows nothing of rounds, and that the theorem does not admit where they are long. With it the "
            "tilted objective shows what drift between clusters costs; a quadratic does not feel it, as its gradient "
            "is linear.",
        ],
    )


def efficiency(name: str, kind: Kind, size: Sizes) -> Found:
    """Trainings for each C around the K that linear speed-up asks for, and where their error crosses the target."""
    means: list[tuple[list[float], Floats]] = []
    bounds: list[tuple[list[float], list[float]]] = []
    for count in size.clusters:
        shape = fleets.equal(count, stages=2, staleness=1, round=kind.round)
        lengths = sorted({max(4 * count, int(size.total * factor)) for factor in _FACTORS})
        case = Case(_objective(name), fleets.schedule(shape, lengths[-1]))
        promises = [case.promise(length) for length in lengths]
        steps = [promise.step if kind.cautious else promise.best_step for promise in promises]
        label = f"{name}, {count} clusters, {kind.name}"
        errors = table_of(case.train(lengths, steps, seeds=size.seeds, label=label))
        each = [length / count for length in lengths]
        means.append((each, errors))
        bounds.append((each, [promise.bound(step) for promise, step in zip(promises, steps, strict=True)]))
    place_of_one = list(means[0][0]).index(float(size.total))
    everyone = np.arange(size.seeds, dtype=np.int64)
    needed, target = _needed(means, place_of_one, everyone)
    draws = resampled(RESAMPLED, size.seeds, np.random.default_rng(0))
    again = [_needed(means, place_of_one, draw)[0] for draw in draws]
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
    if name == "tilted":
        return Tilted(sigma_sq=DRIFTING)
    return Quadratic(sigma_sq=NOISE) if name == "quadratic" else Logistic(*tumours())


def _needed(
    means: Sequence[tuple[Sequence[float], Floats]], place_of_one: int, chosen: Ints
) -> tuple[list[float], float]:
    """K of each C to the error that one cluster has at `place_of_one`, from the `chosen` seeds.

    Chance that a seed has in common for several C then stays in common.
    """
    target = float(means[0][1][place_of_one, chosen].mean())
    found = [crossing(lengths, list(errors[:, chosen].mean(axis=1)), target, rising=False) for lengths, errors in means]
    return found, target


def _efficiency(needed: Sequence[float], clusters: Sequence[int]) -> list[float]:
    return [needed[0] / (count * each) for count, each in zip(clusters, needed, strict=True)]


def judged(name: str, kind: Kind, found: Found) -> list[Claim]:
    if kind is LONG_BOLD and name != "tilted":
        return []  # neither promised nor excluded
    if kind is SHORT:
        up_to = [place for place, count in enumerate(found.clusters) if 1 < count <= PROMISED_UP_TO]
        worst = min(up_to, key=lambda place: found.low[place])
        return [
            Claim(
                f"{name}, {kind.name}",
                f"efficiency up to {PROMISED_UP_TO} clusters",
                f"lower end of the interval >= {LEAST}",
                f"{_said(found, worst)} at C = {found.clusters[worst]}; {_promise(found, up_to[-1])}",
                found.low[worst] >= LEAST,
            )
        ]
    last = len(found.clusters) - 1
    return [
        Claim(
            f"{name}, {kind.name}",
            f"where no linear speed-up is promised, {found.clusters[last]} clusters depart from it, "
            + ("with the theorem's step, which is small there" if kind.cautious else "with a step that is not smaller"),
            f"upper end of the interval < {LEAST}",
            f"{_said(found, last)}; {_promise(found, last)}",
            found.high[last] < LEAST and found.promised[last] < LEAST,
        )
    ]


def _said(found: Found, place: int) -> str:
    if not math.isfinite(found.needed[place]):
        return f"ε not reached with {_FACTORS[-1]:g} times the updates: below {1 / _FACTORS[-1]:g}"
    return f"{found.efficiency[place]:.3g} ({found.low[place]:.3g} to {found.high[place]:.3g})"


def _promise(found: Found, place: int) -> str:
    """What the bound says of so many clusters."""
    value = found.promised[place]
    said = f"{value:.2g}" if value else f"less than {1 / _FACTORS[-1]:g}"
    return f"the bound promises {said} at C = {found.clusters[place]}"


def _reached(x: Sequence[float], *columns: Sequence[float]) -> list[list[float]]:
    """x and the columns where the first of these is no 0: elsewhere the error was not reached."""
    shown = [place for place, value in enumerate(columns[0]) if value]
    return [[column[place] for place in shown] for column in (x, *columns)]
