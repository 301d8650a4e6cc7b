"""What the warm spare's run trains: layers wide enough that their weights take their time on a slow link, and noise."""

from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

WIDTH, LAYERS, SAMPLES, HELD_OUT = 768, 8, 4096, 16


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(x))


def stack(width: int = WIDTH) -> nn.Module:
    """Equal layers, 4.7 M parameters unless they are narrower."""
    return nn.Sequential(*(Layer(width) for _ in range(LAYERS)))


def noise(width: int = WIDTH) -> SimpleNamespace:
    """Inputs and targets of `width` numbers each."""
    draw = torch.Generator().manual_seed(1)
    x, y = (torch.randn(SAMPLES + HELD_OUT, width, generator=draw) for _ in range(2))
    parts = [TensorDataset(x[:SAMPLES], y[:SAMPLES]), TensorDataset(x[SAMPLES:], y[SAMPLES:])]
    return SimpleNamespace(train=parts[0], held_out=parts[1], baselines={})
