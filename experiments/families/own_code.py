"""Models with Python code of their own, which a captured graph carries as it is meant or has to refuse.

Each takes (B, 16) and gives (B, 4).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from experiments.families.datasets import CLASSES, WIDTH
from experiments.families.dense import HIDDEN, perceptron


class Branching(nn.Module):
    """Control flow that depends on values: it has to be refused."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(WIDTH, HIDDEN), nn.Linear(WIDTH, HIDDEN)
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.one(x) if float(x.mean()) > 0 else self.other(x)
        return self.head(hidden)  # type: ignore[no-any-return]


class NumpyNoise(nn.Module):
    """Draws from numpy's generator: it has to be refused."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        import numpy as np

        return self.head(self.body(x) * float(np.random.rand()))  # type: ignore[no-any-return]


class _Rounded(torch.autograd.Function):
    """Rounds to quarters; its backward is a straight-through estimate."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (4 * x).round() / 4

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class _Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = perceptron(outputs=HIDDEN), nn.Linear(HIDDEN, CLASSES)


class OwnBackward(_Layers):
    """An autograd.Function of the user's, with a backward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(_Rounded.apply(self.body(x)))  # type: ignore[no-any-return]


class StraightThrough(_Layers):
    """The same in torch's own operations."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x)
        return self.head(hidden + ((4 * hidden).round() / 4 - hidden).detach())  # type: ignore[no-any-return]


@torch.library.custom_op("families::scaled", mutates_args=())
def scaled(x: Tensor, by: float) -> Tensor:
    """An operator of the user's, with a backward of its own."""
    return x * by


@scaled.register_fake
def _(x: Tensor, by: float) -> Tensor:
    return torch.empty_like(x)


def _keep(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
    ctx.by = inputs[1]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return gradient * ctx.by / 2, None  # half of the true one, which is seen if a graph has another


scaled.register_autograd(_backward, setup_context=_keep)


class OwnOperator(_Layers):
    """It applies `scaled`."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(scaled(self.body(x), 1.5))  # type: ignore[no-any-return]


def masked() -> nn.Module:
    """A hook cuts connections out of the gradients of a layer, which it would have to do in each backward."""
    model = perceptron()
    weight = model.get_parameter("0.weight")
    keep = (torch.arange(weight.numel()) % 2).view(weight.shape)
    weight.register_hook(lambda gradient: gradient * keep.to(gradient))
    return model


class Annealed(_Layers):
    """A number in Python that each forward changes: it would stay what it was when the model was captured."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = 1.0

    def forward(self, x: Tensor) -> Tensor:
        self.noise *= 0.9
        return self.head(self.body(x) + self.noise * torch.randn(HIDDEN, device=x.device))  # type: ignore[no-any-return]
