"""What the data are, in a few characters: the lengths of the sets, and a hash of samples spread over them.

In: sample sets. Out: text that is equal for equal data. Samples are read with the seeds of a run, so that random ones
give the same hash whenever they are read.
"""

import hashlib
from collections.abc import Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor

from ravnest.training.batches import Inputs, SampleSet, Target, arguments, target_tensors
from ravnest.training.sampler import ENDLESS

SAMPLED = 16
"""How many samples of each set are hashed: its first, its last, and others evenly between them."""

_CHARACTERS = 16
_DEEPEST = 8


def sampled(size: int, count: int = SAMPLED) -> list[int]:
    """At most `count` indices, spread evenly over range(size), its ends included; of a stream the first ones."""
    if size <= count or size > ENDLESS // 2:  # of a stream, what comes first
        return list(range(min(size, count)))
    return sorted({index * (size - 1) // (count - 1) for index in range(count)})


def fingerprint(*sets: SampleSet) -> str:
    """The lengths and a hash of some samples of each set. Raises InvalidInput where the user's dataset raises."""
    said = hashlib.sha256()
    for each in sets:
        for index in sampled(len(each)):
            said.update(digest(each.samples([index])[0]))
    lengths = " + ".join("a stream" if len(each) == ENDLESS else str(len(each)) for each in sets)
    return f"{lengths} samples, {said.hexdigest()[:_CHARACTERS]}"


def digest_of_batch(batch: tuple[Inputs, Target]) -> str:
    """A hash of a batch's tensors."""
    by_position, by_name = arguments(batch[0])
    return digest([*by_position, *by_name.values(), *target_tensors(batch[1])]).hex()[:_CHARACTERS]


def digest(value: Any, deep: int = 0) -> bytes:
    """A hash of a sample: of its tensors, arrays, numbers and texts, in any nesting. Of an object of another kind its
    attributes count, or only its type."""
    said = hashlib.sha256(type(value).__name__.encode())
    array = torch.as_tensor(value) if _is_array(value) else None
    if array is not None:
        said.update(f"{array.dtype} {tuple(array.shape)}".encode())
        if not array.is_sparse:
            said.update(array.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    elif isinstance(value, str | int | float | complex | bool | None):
        said.update(repr(value).encode())
    elif isinstance(value, bytes | bytearray):
        said.update(value)
    elif deep < _DEEPEST and isinstance(value, Mapping):
        for key, item in value.items():
            said.update(digest(key, deep + 1) + digest(item, deep + 1))
    elif deep < _DEEPEST and isinstance(value, Sequence):
        for item in value:
            said.update(digest(item, deep + 1))
    elif deep < _DEEPEST and isinstance(value, Set):
        for each in sorted(digest(item, deep + 1) for item in value):
            said.update(each)
    elif hasattr(value, "tobytes"):  # a picture of Pillow, an array of strings
        said.update(value.tobytes())
    elif deep < _DEEPEST and hasattr(value, "__dict__"):
        said.update(digest(vars(value), deep + 1))
    return said.digest()


def _is_array(value: Any) -> bool:
    if isinstance(value, Tensor):
        return True
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    return kind in tuple("biufc")  # numpy's arrays and numbers, without texts and objects
