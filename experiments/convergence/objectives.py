"""What is minimised: objectives with an exact gradient, and with L, σ² and a lower bound that are known.

Points are (points, runs, d): each run is a training of its own, all of them go through the same schedule. Blocks are
the stages' parts of the d parameters. What is known of each objective is derived in docs/theory-practice.md, section 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Protocol

import numpy as np

from experiments.convergence.schedule import Floats, Ints
from experiments.convergence.seen import Seen, look
from experiments.convergence.theorem import Problem

MARGIN = 1.5
"""Over what was seen along the descent, for trainings that noise leads elsewhere."""


class Objective(Protocol):
    """A function that stochastic gradients are drawn of."""

    @property
    def name(self) -> str: ...
    @property
    def start(self) -> Floats:
        """(d,): where every run begins."""
        ...

    def problem(self, blocks: Sequence[slice]) -> Problem: ...
    def gradients(self, points: Floats, random: np.random.Generator) -> Floats:
        """(points, runs, d): a stochastic gradient at each point of each run, all drawn independently."""
        ...

    def exact(self, points: Floats) -> Floats:
        """(points, runs, d) → the same: ∇f."""
        ...


def equal_blocks(dimensions: int, stages: int) -> list[slice]:
    """Consecutive, as equal as can be."""
    edges = [dimensions * stage // stages for stage in range(stages + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]


@dataclass(frozen=True)
class Quadratic:
    """½ Σ λ x², with Gaussian noise on every gradient."""

    curvatures: tuple[float, ...] = tuple(float(c) for c in np.geomspace(0.5, 1.0, 4)) * 6
    """The same four over and over, so that blocks of any four, or more of them, are alike."""
    sigma_sq: float = 8.0
    """Of the whole gradient."""
    old_draws: int | None = None
    """A negative control: noise of so many fixed draws only, used again and again. Their mean is a bias."""

    name = "quadratic"

    @cached_property
    def start(self) -> Floats:
        return np.full(len(self.curvatures), 2.0 / np.sqrt(len(self.curvatures)))

    def problem(self, blocks: Sequence[slice]) -> Problem:
        of_block = [self.sigma_sq * (block.stop - block.start) / len(self.curvatures) for block in blocks]
        gap = 0.5 * float((np.asarray(self.curvatures) * self.start**2).sum())
        return Problem(max(self.curvatures), tuple(of_block), gap)

    def gradients(self, points: Floats, random: np.random.Generator) -> Floats:
        spread = np.sqrt(self.sigma_sq / len(self.curvatures))
        if self.old_draws is None:
            noise = random.standard_normal(points.shape)
        else:
            fixed = np.random.default_rng(self.old_draws).standard_normal((self.old_draws, points.shape[-1]))
            noise = fixed[random.integers(self.old_draws, size=points.shape[:-1])]
        return np.asarray(self.exact(points) + spread * noise, dtype=np.float64)

    def exact(self, points: Floats) -> Floats:
        return np.asarray(np.asarray(self.curvatures) * points, dtype=np.float64)


@dataclass(frozen=True)
class Tilted:
    """Σ 4 w² softplus(x / w) − 4 w q x: as smooth as a quadratic, but its slope bends within a width w of its minimum.

    So the mean gradient of clusters that have drifted apart is not that of their mean: what long rounds cost.
    """

    dimensions: int = 24
    width: float = 0.05
    tilt: float = 0.25
    """q, in (0, 1): ½ would be symmetric, and drift would cost nothing."""
    sigma_sq: float = 8.0

    name = "tilted"

    @cached_property
    def start(self) -> Floats:
        return np.full(self.dimensions, 2.0 / np.sqrt(self.dimensions))

    def problem(self, blocks: Sequence[slice]) -> Problem:
        least = self.width * np.log(self.tilt / (1 - self.tilt))
        gap = self.value(float(self.start[0])) - self.value(float(least))
        of_block = tuple(self.sigma_sq * (block.stop - block.start) / self.dimensions for block in blocks)
        return Problem(1.0, of_block, self.dimensions * gap)

    def value(self, x: float) -> float:
        return float(4 * self.width**2 * np.logaddexp(0.0, x / self.width) - 4 * self.width * self.tilt * x)

    def gradients(self, points: Floats, random: np.random.Generator) -> Floats:
        spread = np.sqrt(self.sigma_sq / self.dimensions)
        noise = random.standard_normal(points.shape)
        return np.asarray(self.exact(points) + spread * noise, dtype=np.float64)

    def exact(self, points: Floats) -> Floats:
        chance = 0.5 + 0.5 * np.tanh(points / (2 * self.width))
        return np.asarray(4 * self.width * (chance - self.tilt), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Logistic:
    """Mean logistic loss over all samples, and a penalty that is not convex: p · Σ x² / (1 + x²)."""

    features: Floats
    """(n, d)"""
    signs: Floats
    """(n,): 1 or −1."""
    penalty: float = 0.1
    batch: int = 1
    """Samples behind one gradient, drawn with replacement."""
    old_draws: int | None = None
    """A negative control: only the first so many samples are drawn, again and again."""

    name = "logistic regression, non-convex penalty"

    @cached_property
    def start(self) -> Floats:
        return np.zeros(self.features.shape[1])

    def problem(self, blocks: Sequence[slice]) -> Problem:
        largest = float(np.linalg.eigvalsh(self.features.T @ self.features / len(self.features))[-1])
        variance = (self.features**2).mean(axis=0) / self.batch
        return Problem(
            largest / 4 + 2 * self.penalty,
            tuple(float(variance[block].sum()) for block in blocks),
            float(np.log(2)),
        )

    def gradients(self, points: Floats, random: np.random.Generator) -> Floats:
        drawn = random.integers(self.old_draws or len(self.signs), size=(*points.shape[:-1], self.batch))
        rows, signs = self.features[drawn], self.signs[drawn]
        margins = signs * np.einsum("prbd,prd->prb", rows, points)
        pull = -signs / (1 + np.exp(margins)) / self.batch
        return np.asarray(np.einsum("prb,prbd->prd", pull, rows) + self._of_penalty(points), dtype=np.float64)

    def exact(self, points: Floats) -> Floats:
        margins = self.signs * (points @ self.features.T)
        pull = -self.signs / (1 + np.exp(margins)) / len(self.signs)
        return np.asarray(pull @ self.features + self._of_penalty(points), dtype=np.float64)

    def _of_penalty(self, points: Floats) -> Floats:
        return np.asarray(2 * self.penalty * points / (1 + points**2) ** 2, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Network:
    """A network of one hidden layer (tanh) with cross-entropy: the mean over all samples, and a ridge.

    Its L and σ² are seen, not proved.
    """

    features: Floats
    """(n, inputs)"""
    labels: Ints
    """(n,)"""
    hidden: int = 8
    classes: int = 10
    ridge: float = 0.01
    batch: int = 2

    name = "network on digits"

    @cached_property
    def start(self) -> Floats:
        random = np.random.default_rng(7)
        inputs = self.features.shape[1]
        first = random.standard_normal((inputs, self.hidden)) / np.sqrt(inputs)
        second = random.standard_normal((self.hidden, self.classes)) / np.sqrt(self.hidden)
        return np.concatenate([first.ravel(), second.ravel()])

    @cached_property
    def seen(self) -> Sequence[Seen]:
        """Along the descent."""
        return look(self.exact, self.of_each_sample, self.start)

    def problem(self, blocks: Sequence[slice]) -> Problem:
        """MARGIN times the largest that was seen: not proved."""
        smoothness = MARGIN * max(seen.curvature for seen in self.seen)
        variances = [max(float(seen.variance[block].sum()) for seen in self.seen) for block in blocks]
        return Problem(
            smoothness, tuple(MARGIN * variance / self.batch for variance in variances), self.loss(self.start)
        )

    def loss(self, point: Floats) -> float:
        """f: 0 bounds it from below."""
        first, second = self._layers(point[None, None])
        logits = np.tanh(self.features @ first[0, 0]) @ second[0, 0]
        logits -= logits.max(axis=-1, keepdims=True)
        picked = logits[np.arange(len(self.labels)), self.labels] - np.log(np.exp(logits).sum(axis=-1))
        return float(-picked.mean() + self.ridge / 2 * (point**2).sum())

    def gradients(self, points: Floats, random: np.random.Generator, back: Floats | None = None) -> Floats:
        """`back`: the points whose weights the backward multiplies with; None: those of the forward."""
        drawn = random.integers(len(self.labels), size=(*points.shape[:-1], self.batch))
        return self._gradient(points, self.features[drawn], self.labels[drawn], points if back is None else back)

    def exact(self, points: Floats, back: Floats | None = None) -> Floats:
        """`back` as in `gradients`: then it is what they are on average, and the gradient of nothing."""
        count = len(self.labels)
        features = np.broadcast_to(self.features, (*points.shape[:-1], count, self.features.shape[1]))
        labels = np.broadcast_to(self.labels, (*points.shape[:-1], count))
        return self._gradient(points, features, labels, points if back is None else back)

    def of_each_sample(self, point: Floats) -> Floats:
        """(d,) → (n, d)"""
        points = np.broadcast_to(point, (len(self.labels), 1, len(point)))
        return self._gradient(points, self.features[:, None, None], self.labels[:, None, None], points)[:, 0]

    def _gradient(self, points: Floats, features: Floats, labels: Ints, back: Floats) -> Floats:
        """Features (points, runs, n, inputs), labels (points, runs, n)."""
        first, second = self._layers(points)
        _, backwards = self._layers(back)
        hidden = np.tanh(features @ first)
        logits = hidden @ second
        logits -= logits.max(axis=-1, keepdims=True)
        chance = np.exp(logits)
        chance /= chance.sum(axis=-1, keepdims=True)
        error = (chance - (labels[..., None] == np.arange(self.classes))) / labels.shape[-1]
        inwards = (error @ backwards.swapaxes(-1, -2)) * (1 - hidden**2)
        parts = [features.swapaxes(-1, -2) @ inwards, hidden.swapaxes(-1, -2) @ error]
        flat = [part.reshape(*points.shape[:-1], -1) for part in parts]
        return np.concatenate(flat, axis=-1) + self.ridge * points

    def _layers(self, points: Floats) -> tuple[Floats, Floats]:
        inputs = self.features.shape[1]
        cut = inputs * self.hidden
        shape = points.shape[:-1]
        return (
            points[..., :cut].reshape(*shape, inputs, self.hidden),
            points[..., cut:].reshape(*shape, self.hidden, self.classes),
        )
