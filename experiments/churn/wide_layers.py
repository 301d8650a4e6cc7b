"""What the warm spare's run trains: layers wide enough that their weights take their time on a slow link, and noise."""

from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

WIDTH, LAYERS, SAMPLES, HELD_OUT = 768, 8, 4096, 16


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(x))


def stack() -> nn.Module:
    """Equal layers, 4.7 M parameters."""
    return nn.Sequential(*(Layer() for _ in range(LAYERS)))


def noise() -> SimpleNamespace:
    """Inputs and targets of WIDTH numbers each."""
    draw = torch.Generator().manual_seed(1)
    x, y = (torch.randn(SAMPLES + HELD_OUT, WIDTH, generator=draw) for _ in range(2))
    parts = [TensorDataset(x[:SAMPLES], y[:SAMPLES]), TensorDataset(x[SAMPLES:], y[SAMPLES:])]
    return SimpleNamespace(train=parts[0], held_out=parts[1], baselines={})
