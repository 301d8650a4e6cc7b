"""Averages that a few liars cannot move far, and how far each contribution lies from the others. Pure.

In: one span of all members' contributions, and the weights that they claim. Out: the span of the average, the same
bytes on every machine, and sums from which each contribution's norm, distance and direction follow.

    trimmed_mean       number by number: the k lowest and the k highest values of the n are left out, and the weighted
                       mean of the others is taken (Yin et al., ICML 2018). k = ⌈n / 4⌉, or less
    centred_clipping   c + Σ w_i s_i (x_i − c) / Σ w_i, where c is the median of the members, number by number, and
                       s_i ≤ 1 shortens what is farther from c than CLIP times the median distance. Each span is clipped
                       by itself (after Karimireddy, He and Jaggi, ICML 2021, who clip around the last average)

A weight is a claim, too. It counts as at most MOST_WEIGHT_RATIO times the median weight. A member without weight has
no part in the rule. Both rules need fewer than half of the members to lie, trimmed_mean at most k. Of two members
nobody can say which one lies: both rules are then the weighted mean.

Every operation works number by number in a fixed order, and is rounded by itself, because sums that a library orders as
it likes differ in the last bits from machine to machine.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, get_args

import torch
from torch import Tensor

RobustRule = Literal["trimmed_mean", "centred_clipping"]

ROBUST_RULES: tuple[RobustRule, ...] = get_args(RobustRule)

CLIP = 2.0
"""A contribution may be so many median distances away. Honest ones seldom are, and are then averaged exactly."""

MOST_WEIGHT_RATIO = 4.0


@dataclass(frozen=True)
class ContributionFigures:
    """What one contribution to a round was like, beside the others'."""

    norm: float
    """Its length."""
    distance: float
    """How far it was from the members' median."""
    cosine: float
    """Of the angle between it and the members' median: 1 for the same direction, −1 for the opposite one, 0 where one
    of them is zero."""
    weight: float
    """What the member says is behind it."""


@dataclass
class Sums:
    """Sums over the spans of a round, of which ContributionFigures are made: squares of a contribution, of its distance
    from the members' median and of that median, and the product of contribution and median."""

    own: float = 0.0
    apart: float = 0.0
    centre: float = 0.0
    product: float = 0.0

    def add(self, own: Tensor, centre: Tensor) -> None:
        """Add one span, in float64, of a contribution and of the members' median."""
        away = own - centre
        self.own += float(own.dot(own))
        self.apart += float(away.dot(away))
        self.centre += float(centre.dot(centre))
        self.product += float(own.dot(centre))

    def figures(self, weight: float) -> ContributionFigures:
        """Return what the sums say of a contribution with this weight."""
        lengths = math.sqrt(self.own) * math.sqrt(self.centre)
        cosine = self.product / lengths if lengths > 0.0 else 0.0
        return ContributionFigures(math.sqrt(self.own), math.sqrt(self.apart), min(1.0, max(-1.0, cosine)), weight)


def trimmed(members: int) -> int:
    """Return how many of the lowest and of the highest values of so many members are left out."""
    return min(math.ceil(members / 4), (members - 1) // 2) if members else 0


def robust_mean(rule: RobustRule, parts: Sequence[Tensor], weights: Sequence[float], sums: Sequence[Sums]) -> Tensor:
    """Return the average (elements,) of one span of float32 numbers. Zeros where no member has a weight.

    `parts`: each member's contribution times its weight, in an order that is the same everywhere; they are not changed.
    `weights`: what each member says is behind its part. `sums`, one for each member, grow by this span.
    """
    counting = [number for number, weight in enumerate(weights) if weight > 0.0]
    if not counting:
        return torch.zeros_like(parts[0])
    most = MOST_WEIGHT_RATIO * median(weights[number] for number in counting)
    counted = [min(weights[number], most) for number in counting]
    values = torch.stack([parts[number].div(weights[number]) for number in counting])
    ranked, order = torch.sort(values, dim=0, stable=True)
    centre = _middle(ranked)
    middle = centre.to(torch.float64)
    for number, value in zip(counting, values.to(torch.float64), strict=True):
        sums[number].add(value, middle)
    if len(counting) < 3:
        return _weighted(values, counted)
    return _trimmed_mean(ranked, order, counted) if rule == "trimmed_mean" else _clipped_mean(values, centre, counted)


def _middle(ranked: Tensor) -> Tensor:
    """The median over the first dimension of numbers that rise along it."""
    count = len(ranked)
    high = ranked[count // 2]
    return high.clone() if count % 2 else ranked[count // 2 - 1].mul(0.5).add_(high.mul(0.5))


def _weighted(values: Tensor, weights: Sequence[float]) -> Tensor:
    total, mean = 0.0, torch.zeros_like(values[0])
    for value, weight in zip(values, weights, strict=True):
        total += weight
        mean.add_(value.mul(weight))
    return mean.div_(total)


def _trimmed_mean(ranked: Tensor, order: Tensor, weights: Sequence[float]) -> Tensor:
    cut = trimmed(len(ranked))
    of_rank = torch.tensor(weights, dtype=torch.float32)[order]
    total, mean = torch.zeros_like(ranked[0]), torch.zeros_like(ranked[0])
    for value, weight in zip(ranked[cut : len(ranked) - cut], of_rank[cut : len(ranked) - cut], strict=True):
        total.add_(weight)
        mean.add_(value.mul(weight))
    return mean.div_(total)


def _clipped_mean(values: Tensor, centre: Tensor, weights: Sequence[float]) -> Tensor:
    distances = [math.sqrt(_sum_of_squares(value - centre)) for value in values]
    most = CLIP * median(distances)
    total, step = 0.0, torch.zeros_like(centre)
    for value, weight, distance in zip(values, weights, distances, strict=True):
        total += weight
        step.add_((value - centre).mul_(weight if distance <= most else weight * (most / distance)))
    return step.div_(total).add_(centre)


def _sum_of_squares(vector: Tensor) -> float:
    """The sum of the squares, added in halves, so that the order is the same on every machine."""
    left = vector.to(torch.float64)
    left = left.mul(left)
    while left.numel() > 1:
        half = (left.numel() + 1) // 2
        folded = left[:half].clone()
        folded[: left.numel() - half].add_(left[half:])
        left = folded
    return float(left[0]) if left.numel() else 0.0
