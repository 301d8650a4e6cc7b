"""A model of any size that is quick to compute, and its data: linear layers one after another.

In: how many layers, and how wide. Out: what a job's factories return.
"""

import time
from collections.abc import Iterator
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

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

    def __init__(self, samples: int, first: int, sample_ms: float = 0.0) -> None:
        """sample_ms: how long reading a sample takes, at the least."""
        self._samples, self._first, self.sample_s = samples, first, sample_ms / 1e3

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self.sample_s:
            time.sleep(self.sample_s)
        x = torch.randn(INPUTS, generator=torch.Generator().manual_seed(self._first + index))
        return x, int(x[:CLASSES].argmax())


class LargestStream(IterableDataset[tuple[Tensor, int]]):
    """The same samples as a stream of so many shards."""

    def __init__(self, sample_ms: float, shards: int, first: int = 0, every: int = 1) -> None:
        self._samples = Largest(100_000, 0, sample_ms)
        self.num_shards, self._first, self._every, self._at = shards, first, every, 0

    def shard(self, num_shards: int, index: int) -> "LargestStream":
        """One of so many parts."""
        return LargestStream(1e3 * self._samples.sample_s, 1, index, num_shards)

    def state_dict(self) -> dict[str, int]:
        """Where it stands."""
        return {"at": self._at}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Go on there."""
        self._at = state_dict["at"]

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        while (index := self._first + self._at * self._every) < len(self._samples):
            self._at += 1
            yield self._samples[index]


def data(samples: int = 100_000, held_out: int = 8, sample_ms: float = 0.0) -> SimpleNamespace:
    """The sets of a job."""
    return SimpleNamespace(train=Largest(samples, 0, sample_ms), held_out=Largest(held_out, samples))


def stream(sample_ms: float, shards: int = 8) -> SimpleNamespace:
    """The sets of a job whose training set is a stream."""
    return SimpleNamespace(train=LargestStream(sample_ms, shards), held_out=Largest(8, 100_000))
