"""What `ravnest run` learns in part `program`: two models on real data, whose whole training set is the probe set.

Decides models and data, found by jobs as any user's are. A job's training set is a list of draws with replacement
out of few samples, so that the loss that is minimised is their mean, and its gradient can be computed exactly. Knows
no run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from experiments.convergence.data import digits
from experiments.harness.report import ROOT
from ravnest.factories import FactoryConfig, call

DRAWS = 2**17
"""More than any of the runs needs: no run draws in a second epoch."""
CONTEXT = 32
WINDOWS = 256
IMAGES = 1024


class Draws(Dataset[tuple[Tensor, Tensor]]):
    """`DRAWS` of `samples`, each drawn evenly with replacement."""

    def __init__(self, samples: TensorDataset, seed: int) -> None:
        self.samples = samples
        generator = torch.Generator().manual_seed(seed)
        self._drawn = torch.randint(len(samples), (DRAWS,), generator=generator)

    def __len__(self) -> int:
        return len(self._drawn)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, target = self.samples[int(self._drawn[index])]
        return inputs, target


class Task:
    """What a data factory returns. Held out are a few of the samples: a run must evaluate on something."""

    def __init__(self, inputs: Tensor, targets: Tensor, seed: int) -> None:
        self.samples = TensorDataset(inputs, targets)
        self.train = Draws(self.samples, seed)
        self.held_out = TensorDataset(inputs[:8], targets[:8])


def images(seed: int = 0) -> Task:
    """Handwritten digits of 4 × 4 pixels."""
    features, labels = digits(IMAGES)
    return Task(torch.tensor(features * 4, dtype=torch.float32), torch.tensor(labels), seed)


def perceptron(widths: Sequence[int] = (17, 16, 10)) -> nn.Module:
    """Two hidden layers, tanh: (B, 17) → logits (B, 10)."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def characters(seed: int = 0) -> Task:
    """Windows of Python's help texts; the next character is to be told."""
    return Task(*_windows(), seed)


@cache
def _windows() -> tuple[Tensor, Tensor]:
    text = FactoryConfig.model_validate({"factory": "examples.home.data:pydoc_text", "args": {"context": CONTEXT}})
    data: Any = call(text, [ROOT])
    windows = data.train
    chosen = [windows[len(windows) * place // WINDOWS] for place in range(WINDOWS)]
    inputs, targets = (torch.stack(column) for column in zip(*chosen, strict=True))
    return inputs, targets
