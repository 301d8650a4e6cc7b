"""The model and the data of the pipeline experiment: a stack of equal layers, and noise to fit."""

from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

WIDTH, LAYERS = 256, 8
SAMPLES, HELD_OUT = 4096, 8


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(x))


def stack() -> nn.Module:
    """`LAYERS` layers of `WIDTH`² weights."""
    return nn.Sequential(*(Layer() for _ in range(LAYERS)))


def noise() -> SimpleNamespace:
    """Inputs and targets of `WIDTH` numbers each."""
    draw = torch.Generator().manual_seed(1)
    x, y = (torch.randn(SAMPLES + HELD_OUT, WIDTH, generator=draw) for _ in range(2))
    parts = [TensorDataset(x[:SAMPLES], y[:SAMPLES]), TensorDataset(x[SAMPLES:], y[SAMPLES:])]
    return SimpleNamespace(train=parts[0], held_out=parts[1], baselines={})
