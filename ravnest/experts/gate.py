"""The product-key gate: one linear map gives a number for each coordinate of each dimension of the grid.

The score of an expert is the sum of the numbers of its coordinates (Lample et al., "Large memory layers with product
keys", NeurIPS 2019), so a grid of 100 × 100 experts has 200 rows. In: samples. Out: numbers, scores of given experts,
and the loss that spreads samples over the grid:

    balance = Σ_d n_d · Σ_i p̄_di² − 1        p̄_di: mean over the batch of softmax over dimension d, coordinate i

which is the mean square of the relative deviations of p̄ (Shazeer et al., 2017), summed over dimensions: 0 when each
coordinate gets equally much.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class ProductKeyGate(nn.Module):
    """Scores experts."""

    def __init__(self, features: int, sides: Sequence[int]) -> None:
        super().__init__()
        self.sides = tuple(sides)
        self.linear = nn.Linear(features, sum(self.sides))

    def forward(self, samples: Tensor) -> list[Tensor]:
        """[dimension] → (samples, coordinates), the logarithms of shares that sum to 1 in each dimension."""
        numbers = self.linear(samples.flatten(1))
        return [part.log_softmax(-1) for part in numbers.split(self.sides, dim=-1)]

    def scores(self, numbers: Sequence[Tensor], experts: Tensor) -> Tensor:
        """(samples, k): the scores of each sample's experts. experts: (samples, k, d or more), whose first d numbers
        are coordinates, or −1 where a sample has fewer than k experts: there the score is -inf."""
        found = torch.stack(
            [number.gather(1, experts[:, :, place].clamp_min(0)) for place, number in enumerate(numbers)]
        ).sum(0)
        return found.masked_fill(experts[:, :, 0] < 0, float("-inf"))


def balance_loss(numbers: Sequence[Tensor]) -> Tensor:
    """See the module; `numbers` are what the gate returned for a batch."""
    parts = [one.shape[-1] * one.exp().mean(0).pow(2).sum() - 1.0 for one in numbers]
    return torch.stack(parts).sum()
