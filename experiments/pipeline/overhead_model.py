"""What the overhead is measured with: a perceptron whose stages send each other 1 MiB, and noise to train it on."""

from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import TensorDataset

WIDTH, MICRO_BATCH, CLASSES = 2048, 128, 10  # 128 · 2048 float32 values: 1 MiB


def perceptron(hidden: int = 512, blocks: int = 4) -> nn.Module:
    """Each block goes through `hidden`, so that parameters stay few beside what crosses a cut."""
    layers: list[nn.Module] = []
    for _ in range(blocks):
        layers += [nn.Linear(WIDTH, hidden), nn.ReLU(), nn.Linear(hidden, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))


def noise(samples: int = 2048) -> SimpleNamespace:
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(samples, WIDTH, generator=draw)
    targets = torch.randint(CLASSES, (samples,), generator=draw)
    return SimpleNamespace(train=TensorDataset(inputs, targets), held_out=TensorDataset(inputs[:128], targets[:128]))
