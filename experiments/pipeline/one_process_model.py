"""What three stages and one process both train: a convolutional network of 16 k parameters, a perceptron of 4.3 M."""

from itertools import pairwise
from types import SimpleNamespace

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from examples.digits.model import DigitsCNN


def cnn() -> nn.Module:
    """Images (B, 1, 8, 8) to logits (B, 10)."""
    return DigitsCNN(14, 0.0)


def perceptron() -> nn.Module:
    """The same."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise((64, 1024, 2048, 1024)):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(1024, 10))


def digits() -> SimpleNamespace:
    """scikit-learn's, all but a few to train on: what is asked is speed."""
    bunch = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(bunch.target, dtype=torch.long)
    held_out = TensorDataset(images[:64], labels[:64])
    return SimpleNamespace(train=TensorDataset(images[64:], labels[64:]), held_out=held_out, baselines={})
