"""The larger of the two models that three stages and one process both train; the other is examples/digits'."""

from itertools import pairwise

from torch import nn


def perceptron() -> nn.Module:
    """4.3 M parameters: images (B, 1, 8, 8) to logits (B, 10)."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise((64, 1024, 2048, 1024)):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(1024, 10))
