"""scikit-learn's 1,797 handwritten digits of 8 × 8 pixels: four fifths to train on, the rest held out."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.utils.data import TensorDataset


class Digits:
    """What a job's data factory returns. The split is a seeded shuffle, for the file is ordered by writer."""

    def __init__(self, seed: int) -> None:
        bunch = load_digits()
        images = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16  # (N, 1, 8, 8) in [0, 1]
        labels = torch.tensor(bunch.target, dtype=torch.long)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
        train, held_out = order.tensor_split([len(order) * 4 // 5])
        self.train = TensorDataset(images[train], labels[train])
        self.held_out = TensorDataset(images[held_out], labels[held_out])
        self.baselines = {"class frequencies": _entropy(labels[train], labels[held_out])}


def digits(seed: int = 0) -> Digits:
    """The factory that job.yaml names."""
    return Digits(seed)


def _entropy(train: Tensor, held_out: Tensor) -> float:
    """Nats per held-out label of a model that knows only how often each digit occurs."""
    frequency = torch.bincount(train, minlength=10).double() / len(train)
    return -frequency[held_out].log().mean().item()
