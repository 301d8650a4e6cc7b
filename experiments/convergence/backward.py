"""Part `backward`: what it is worth that a backward uses the weights of its forward, compared at fixed steps.

The network on digits, both layers T updates late. `own`: the backward multiplies with the weights of its forward, as
the program does. `newest`: with those that are there by then, as one would without keeping versions; what comes out is
the gradient of nothing. Its bias is of the order of the step times T, so with the theorem's shrinking step no slope
shows it; at a step that stays, it stays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.convergence.data import digits
from experiments.convergence.fitting import Interval, interval
from experiments.convergence.objectives import Network
from experiments.convergence.schedule import Floats
from experiments.harness.report import Cell, Claim, Panel, Part, Series, Table

DELAY = 16
"""Updates by which both layers are late."""
PROBES = 64
LINEAR = (0.8, 1.2)
SMALL_STEPS = (0.0025, 0.005, 0.01, 0.02)
"""At which the bias is compared near the start: further on, larger steps have come further."""


@dataclass(frozen=True)
class Sizes:
    """Steps, and updates of each training."""

    steps: Sequence[float]
    updates: int
    seeds: int


def sizes(*, quick: bool) -> Sizes:
    """Those of the report, or small ones."""
    return Sizes((0.1, 1.0), 512, 8) if quick else Sizes((0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0), 2048, 24)


@dataclass(frozen=True)
class Trained:
    """Of each seed, (seeds,), over the second half of a training."""

    error: Floats
    """Mean ‖∇f‖² at the newest weights."""
    bias: Floats
    """Mean norm of what the gradients are on average, less ∇f where the forward was made."""


def run(*, quick: bool) -> Part:
    """Measure and judge."""
    size = sizes(quick=quick)
    network = Network(*digits())
    own = [train(network, step, size, newest=False) for step in size.steps]
    newest = [train(network, step, size, newest=True) for step in size.steps]
    short = Sizes(SMALL_STEPS, 4 * DELAY, size.seeds)
    early = np.log([train(network, step, short, newest=True).bias for step in SMALL_STEPS])
    slopes = interval(_slopes(np.log(SMALL_STEPS), early))
    ratios = [interval(two.error / one.error) for one, two in zip(own, newest, strict=True)]
    best = min(range(len(size.steps)), key=lambda place: float(own[place].error.mean()))
    claims = [
        Claim(
            "own weights",
            "bias of the gradients with the weights of the forward, all steps, at most",
            "0 but for rounding: < 1e-12",
            f"{max(float(each.bias.max()) for each in own):.2g}",
            all((each.bias < 1e-12).all() for each in own),
        ),
        Claim(
            "control: newest weights",
            f"bias of the gradients with the newest weights, at a step of {size.steps[-1]:g}: fails that check",
            ">= 1e-12",
            str(interval(newest[-1].bias)),
            interval(newest[-1].bias).low >= 1e-12,
        ),
        Claim(
            "control: vanishes with the step",
            "as which power of the step does that bias fall, after the same few updates? So no slope over K shows it",
            f"1: within {LINEAR[0]} and {LINEAR[1]}",
            str(slopes),
            LINEAR[0] <= slopes.mean <= LINEAR[1],
        ),
        Claim(
            "what it costs",
            f"error with the newest weights over that with the forward's, at a step of {size.steps[-1]:g}, the largest",
            "lower end of the 95 % interval > 1",
            f"{ratios[-1]}; at a step of {size.steps[best]:g}, where the error is least: {ratios[best]}",
            ratios[-1].low > 1,
        ),
    ]
    rows: list[list[Cell]] = [
        [step, str(interval(one.error)), str(interval(two.error)), str(ratio), str(interval(two.bias))]
        for step, one, two, ratio in zip(size.steps, own, newest, ratios, strict=True)
    ]
    return Part(
        "backward",
        "New weights in the backward",
        claims,
        [Table("At fixed steps", ["step", "own: ‖∇f‖²", "newest: ‖∇f‖²", "newest over own", "newest: bias"], rows)],
        [_panel(size, own, newest)],
        [
            f"Network on digits, both layers {DELAY} updates late, {size.updates} updates of one step, the second half "
            f"measured, {size.seeds} seeds; both ways have the same start and samples.",
        ],
    )


def train(network: Network, step: float, size: Sizes, *, newest: bool) -> Trained:
    """SGD with one step, each gradient DELAY updates late; `newest`: whose weights the backward uses."""
    random = np.random.default_rng(1)
    versions = deque([np.tile(network.start, (size.seeds, 1))], maxlen=DELAY + 1)
    errors, biases = [], []
    half = size.updates // 2
    for update in range(size.updates):
        old, now = versions[0][None], versions[-1][None]
        back = now if newest else old
        if update >= half and (update - half) % max(1, half // PROBES) == 0:
            errors.append((network.exact(now)[0] ** 2).sum(axis=-1))
            biases.append(np.linalg.norm(network.exact(old, back)[0] - network.exact(old)[0], axis=-1))
        versions.append(versions[-1] - step * network.gradients(old, random, back)[0])
    return Trained(np.mean(errors, axis=0), np.mean(biases, axis=0))


def _slopes(x: Floats, y: Floats) -> Floats:
    """(seeds,): of y (steps, seeds) against x (steps,)."""
    centred = x - x.mean()
    return np.asarray((centred[:, None] * y).sum(axis=0) / (centred**2).sum(), dtype=np.float64)


def _panel(size: Sizes, own: Sequence[Trained], newest: Sequence[Trained]) -> Panel:
    def series(label: str, found: Sequence[Interval]) -> Series:
        return Series(
            label,
            list(size.steps),
            [one.mean for one in found],
            [one.low for one in found],
            [one.high for one in found],
        )

    return Panel(
        "New weights in the backward",
        "step",
        "mean ‖∇f‖²; bias",
        [
            series("own weights: error", [interval(each.error) for each in own]),
            series("newest weights: error", [interval(each.error) for each in newest]),
            series("newest weights: bias", [interval(each.bias) for each in newest]),
        ],
        log_x=True,
        log_y=True,
    )
