"""What paced stages train: narrow layers, whose own computing takes next to no time, and noise to fit."""

import time
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

WIDTH, MICRO_BATCH = 256, 64
SAMPLES, HELD_OUT = 8192, 8


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(x))


def stack(layers: int) -> nn.Module:
    """Equal layers."""
    return nn.Sequential(*(Layer() for _ in range(layers)))


def noise() -> SimpleNamespace:
    """Inputs and targets of WIDTH numbers each."""
    draw = torch.Generator().manual_seed(1)
    x, y = (torch.randn(SAMPLES + HELD_OUT, WIDTH, generator=draw) for _ in range(2))
    parts = [TensorDataset(x[:SAMPLES], y[:SAMPLES]), TensorDataset(x[SAMPLES:], y[SAMPLES:])]
    return SimpleNamespace(train=parts[0], held_out=parts[1], baselines={})


class SlowlyRead(Dataset[tuple[Tensor, ...]]):
    """The samples of another data set, each of which takes `read_s` to read, and next to no computing."""

    def __init__(self, samples: TensorDataset, read_s: float) -> None:
        self._samples = samples
        self._read_s = read_s

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        time.sleep(self._read_s)
        return self._samples[index]


def slow_noise(read_s: float) -> SimpleNamespace:
    """The same noise at the pace of its reading: most of the cores stays idle, for others on the same machine."""
    made = noise()
    return SimpleNamespace(
        train=SlowlyRead(made.train, read_s), held_out=SlowlyRead(made.held_out, read_s), baselines={}
    )
