"""The batches of one stage: micro-batch k of a cluster, and held-out batch b, by number.

The first stage needs the inputs and the last one the targets; both read the same seeded sampler, so targets never
travel. Knows no socket, and remembers no position: the number says it all.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from ravnest.errors import InvalidInput
from ravnest.training.sampler import Sampler


def fetch(dataset: Any, indices: Sequence[int]) -> tuple[tuple[Tensor, ...], Tensor]:
    """The samples at `indices`, collated: (inputs, target). Inputs are always a tuple."""
    samples = dataset.__getitems__(list(indices)) if hasattr(dataset, "__getitems__") else [dataset[i] for i in indices]
    inputs, target = default_collate(samples)
    inputs = tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)
    if not all(isinstance(value, Tensor) for value in (*inputs, target)):
        raise InvalidInput("each sample must be (inputs, target) of tensors or numbers", key="data")
    return inputs, target


class BatchSource:
    """Reads a data factory's `train` and `held_out` sets for one cluster."""

    def __init__(self, data: Any, sampler: Sampler, held_out_spans: Sequence[range]) -> None:
        self._train = data.train
        self._held_out = data.held_out
        self._sampler = sampler
        self._held_out_spans = held_out_spans

    def train(self, micro_batch: int) -> tuple[tuple[Tensor, ...], Tensor]:
        return fetch(self._train, self._sampler.batch(micro_batch))

    def held_out(self, batch: int) -> tuple[tuple[Tensor, ...], Tensor]:
        return fetch(self._held_out, self._held_out_spans[batch])


def sample_batch(data: Any, size: int) -> tuple[tuple[Tensor, ...], Tensor]:
    """The first `size` training samples: what the model is captured and checked with."""
    if len(data.train) < size:
        raise InvalidInput(f"the training set has {len(data.train)} samples, fewer than micro_batch = {size}")
    with torch.no_grad():
        return fetch(data.train, range(size))
