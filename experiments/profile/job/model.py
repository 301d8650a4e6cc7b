"""A small perceptron of several layers."""

from torch import nn


def perceptron(width: int, layers: int) -> nn.Module:
    inner = [module for _ in range(layers) for module in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*inner, nn.Linear(width, 10))
