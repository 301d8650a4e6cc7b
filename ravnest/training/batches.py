"""The batches of one stage: micro-batch k of a cluster, and held-out batch b, by number.

In: a job's datasets, a sampler and a number. Out: inputs and targets as tensors. The first stage needs the inputs and
the last one the targets; both read the same seeded sampler, so targets never travel. No position is remembered: the
number determines the batch.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

from ravnest.errors import InvalidInput
from ravnest.factories import describe, user_code
from ravnest.training.sampler import Sampler

_KEY = "data.factory"
_EXPECTED = (
    "each sample must be (inputs, target) of tensors or numbers, of one shape in all samples; several inputs are a"
    " tuple (by position) or a dict (by keyword of the model's forward)"
)

Inputs: TypeAlias = tuple[Tensor, ...] | dict[str, Tensor]
"""A batch as the model takes it: by position, or by keyword."""


def arguments(inputs: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """The inputs as arguments of a call: (by position, by keyword)."""
    return ((), inputs) if isinstance(inputs, dict) else (inputs, {})


def fetch(dataset: Any, indices: Sequence[int]) -> tuple[Inputs, Tensor]:
    """The samples at `indices`, collated: (inputs, target). Inputs are a tuple unless the samples hold a dict of them.

    Raises InvalidInput where the user's dataset raises, or has something else there than (inputs, target).
    """
    if type(dataset) is TensorDataset and len(dataset.tensors) == 2:  # the same rows, without making a tuple for each
        with user_code("reading samples", key=_KEY):
            rows, targets = (tensor[list(indices)] for tensor in dataset.tensors)
        return (rows,), targets
    samples = _read(dataset, list(indices))
    for index, sample in zip(indices, samples, strict=True):
        if not (isinstance(sample, tuple | list) and len(sample) == 2):
            size = f" of {len(sample)}" if isinstance(sample, tuple | list) else ""
            raise InvalidInput(f"sample {index} is {type(sample).__name__}{size}; {_EXPECTED}", key=_KEY)
    _require_one_form([inputs for inputs, _ in samples], indices)
    try:
        inputs, target = default_collate(samples)
    except Exception as error:
        raise InvalidInput(
            f"samples cannot be joined into a batch: {describe(error)}; {_EXPECTED}", key=_KEY
        ) from error
    values = tuple(inputs.values()) if isinstance(inputs, dict) else inputs
    values = tuple(values) if isinstance(values, list | tuple) else (values,)
    if not all(isinstance(value, Tensor) for value in (*values, target)):
        raise InvalidInput(_EXPECTED, key=_KEY)
    return (inputs if isinstance(inputs, dict) else values), target


def _require_one_form(inputs: list[Any], indices: Sequence[int]) -> None:
    """Collating takes the keys of the first sample, and would drop the other keys of later ones."""
    keys = [sorted(map(str, one)) if isinstance(one, Mapping) else None for one in inputs]
    for index, found in zip(indices, keys, strict=True):
        if found != keys[0]:
            first, other = (_said(keys[0]), _said(found))
            raise InvalidInput(f"sample {indices[0]} has {first}, sample {index} {other}; {_EXPECTED}", key=_KEY)


def _said(keys: list[str] | None) -> str:
    return "inputs by position" if keys is None else f"the inputs {', '.join(keys) or 'of an empty dict'}"


def _read(dataset: Any, indices: list[int]) -> list[Any]:
    shown = ", ".join(str(index) for index in indices[:4]) + (", …" if len(indices) > 4 else "")
    with user_code(f"reading samples {shown}", key=_KEY):
        return (
            list(dataset.__getitems__(indices)) if hasattr(dataset, "__getitems__") else [dataset[i] for i in indices]
        )


class BatchSource:
    """Reads a data factory's `train` and `held_out` sets for one cluster."""

    def __init__(
        self, data: Any, sampler: Sampler, held_out_spans: Sequence[range], input_names: Sequence[str] | None = None
    ) -> None:
        """`input_names`: the order in which a first stage takes inputs given by keyword; None: they are not wanted."""
        self._input_names = input_names
        self._train = data.train
        self._held_out = data.held_out
        self._sampler = sampler
        self._held_out_spans = held_out_spans

    @property
    def samples(self) -> tuple[int, int]:
        """The numbers of samples in the training and in the held-out set."""
        return len(self._train), len(self._held_out)

    def train(self, micro_batch: int) -> tuple[tuple[Tensor, ...], Tensor]:
        """(inputs, target) of the micro-batch of that number. Raises InvalidInput as fetch does."""
        return self._ordered(*fetch(self._train, self._sampler.batch(micro_batch)))

    def held_out(self, batch: int) -> tuple[tuple[Tensor, ...], Tensor]:
        """(inputs, target) of the held-out batch of that number. Raises InvalidInput as fetch does."""
        return self._ordered(*fetch(self._held_out, self._held_out_spans[batch]))

    def _ordered(self, inputs: Inputs, target: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        if self._input_names is None:
            return (inputs if isinstance(inputs, tuple) else ()), target
        return in_order(inputs, self._input_names), target


def in_order(inputs: Inputs, names: Sequence[str]) -> tuple[Tensor, ...]:
    """The inputs in the order in which a first stage takes them. `names`: the order of inputs given by keyword.

    Raises InvalidInput where a sample has other inputs.
    """
    if isinstance(inputs, tuple):
        return inputs
    if inputs.keys() != set(names):
        wanted, found = ", ".join(names), ", ".join(inputs)
        raise InvalidInput(f"a sample has the inputs {found}; the model was captured with {wanted}", key=_KEY)
    return tuple(inputs[name] for name in names)


def sample_batch(data: Any, size: int) -> tuple[Inputs, Tensor]:
    """The first `size` training samples, with which the model is captured and checked."""
    if len(data.train) < size:
        message = f"is {size}, but the training set has only {len(data.train)} samples: lower it or bring more"
        raise InvalidInput(message, key="micro_batch")
    with torch.no_grad():
        return fetch(data.train, range(size))
