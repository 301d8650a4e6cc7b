"""The batches of one stage: micro-batch k of a cluster, and held-out batch b, by number.

The first stage needs the inputs and the last one the targets; both read the same seeded sampler, so targets never
travel. Knows no socket, and remembers no position: the number says it all.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

from ravnest.errors import InvalidInput
from ravnest.factories import describe, user_code
from ravnest.training.sampler import Sampler

_KEY = "data.factory"
_EXPECTED = "each sample must be (inputs, target) of tensors or numbers, of one shape in all samples"


def fetch(dataset: Any, indices: Sequence[int]) -> tuple[tuple[Tensor, ...], Tensor]:
    """The samples at `indices`, collated: (inputs, target). Inputs are always a tuple.

    Raises InvalidInput where the user's dataset raises, or has something else there than (inputs, target).
    """
    if type(dataset) is TensorDataset and len(dataset.tensors) == 2:  # the same rows, without a tuple for each
        with user_code("reading samples", key=_KEY):
            rows, targets = (tensor[list(indices)] for tensor in dataset.tensors)
        return (rows,), targets
    samples = _read(dataset, list(indices))
    for index, sample in zip(indices, samples, strict=True):
        if not (isinstance(sample, tuple | list) and len(sample) == 2):
            size = f" of {len(sample)}" if isinstance(sample, tuple | list) else ""
            raise InvalidInput(f"sample {index} is {type(sample).__name__}{size}; {_EXPECTED}", key=_KEY)
    try:
        inputs, target = default_collate(samples)
    except Exception as error:
        raise InvalidInput(
            f"samples cannot be joined into a batch: {describe(error)}; {_EXPECTED}", key=_KEY
        ) from error
    inputs = tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)
    if not all(isinstance(value, Tensor) for value in (*inputs, target)):
        raise InvalidInput(_EXPECTED, key=_KEY)
    return inputs, target


def _read(dataset: Any, indices: list[int]) -> list[Any]:
    shown = ", ".join(str(index) for index in indices[:4]) + (", …" if len(indices) > 4 else "")
    with user_code(f"reading samples {shown}", key=_KEY):
        return (
            list(dataset.__getitems__(indices)) if hasattr(dataset, "__getitems__") else [dataset[i] for i in indices]
        )


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
        message = f"is {size}, but the training set has only {len(data.train)} samples: lower it or bring more"
        raise InvalidInput(message, key="micro_batch")
    with torch.no_grad():
        return fetch(data.train, range(size))
