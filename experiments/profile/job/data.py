"""Numbers of a seed: which of ten directions a vector is nearest to."""

from dataclasses import dataclass

import torch
from sizes import HELD_OUT, TRAIN
from torch.utils.data import TensorDataset


@dataclass(frozen=True)
class Data:
    train: TensorDataset
    held_out: TensorDataset


def directions(width: int) -> Data:
    chance = torch.Generator().manual_seed(0)
    inputs = torch.randn(TRAIN + HELD_OUT, width, generator=chance)
    targets = (inputs @ torch.randn(width, 10, generator=chance)).argmax(dim=1)
    train, held_out = (TensorDataset(inputs[part], targets[part]) for part in (slice(TRAIN), slice(TRAIN, None)))
    return Data(train, held_out)
