"""What the attacked run trains: narrow layers on noise, at a pace that its data keep and not its computing.

The attackers share the machine's cores with the run, which real strangers do not. So reading a sample takes READ_S
without computing, and most of the cores stays idle.
"""

import time
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

WIDTH, SAMPLES, READ_S = 64, 4096, 0.01


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(x))


def stack(layers: int) -> nn.Module:
    """Equal layers."""
    return nn.Sequential(*(Layer() for _ in range(layers)))


class SlowNoise(Dataset[tuple[Tensor, Tensor]]):
    """Inputs and targets of WIDTH numbers each, which take READ_S to read."""

    def __init__(self, samples: int) -> None:
        self._numbers = torch.randn(2, samples, WIDTH, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return self._numbers.shape[1]

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        time.sleep(READ_S)
        return self._numbers[0, index], self._numbers[1, index]


def noise() -> SimpleNamespace:
    """The two sets."""
    return SimpleNamespace(train=SlowNoise(SAMPLES), held_out=SlowNoise(8), baselines={})
