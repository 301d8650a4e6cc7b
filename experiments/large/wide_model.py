"""A model of any size that is quick to compute, and its data: linear layers one after another.

In: how many layers, and how wide. Out: what a job's factories return.
"""

from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

INPUTS, CLASSES = 16, 4


class Layer(nn.Module):
    """One linear layer beside its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Of the shape of `x`, (batch, width)."""
        return x + torch.tanh(self.linear(x))


def model(layers: int, width: int) -> nn.Module:
    """About 4 · layers · width² bytes of weights."""
    return nn.Sequential(nn.Linear(INPUTS, width), *(Layer(width) for _ in range(layers)), nn.Linear(width, CLASSES))


class Largest(Dataset[tuple[Tensor, int]]):
    """Which of a sample's first numbers is the largest."""

    def __init__(self, samples: int, first: int) -> None:
        self._samples, self._first = samples, first

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x = torch.randn(INPUTS, generator=torch.Generator().manual_seed(self._first + index))
        return x, int(x[:CLASSES].argmax())


def data(samples: int = 100_000, held_out: int = 8) -> SimpleNamespace:
    """The sets of a job."""
    return SimpleNamespace(train=Largest(samples, 0), held_out=Largest(held_out, samples))
