"""The real data of the experiments on convergence: two sets that scikit-learn brings along, scaled."""

from functools import cache

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits

from experiments.convergence.schedule import Floats, Ints


@cache
def tumours() -> tuple[Floats, Floats]:
    """(569, 30) features, standardised and then scaled so that a sample has a squared norm of 1 on average; signs."""
    features, target = load_breast_cancer(return_X_y=True)
    scaled = (features - features.mean(axis=0)) / features.std(axis=0)
    scaled /= np.sqrt((scaled**2).sum(axis=1).mean())
    return scaled, np.where(target == 1, 1.0, -1.0)


@cache
def digits(samples: int = 256) -> tuple[Floats, Ints]:
    """(samples, 17): 4×4 means of the pixels and a constant, of the first so many images; labels."""
    pixels, labels = load_digits(return_X_y=True)
    small = pixels.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(-1, 16)[:samples]
    small = (small - small.mean(axis=0)) / (small.std(axis=0) + 1e-9) / 4
    return np.concatenate([small, np.full((samples, 1), 0.5)], axis=1), labels[:samples].astype(np.int64)
