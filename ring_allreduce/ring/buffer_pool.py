"""Vectors that are used again: fresh pages cost more than the numbers that are written to them."""

from collections.abc import Callable

import torch
from torch import Tensor

Empty = Callable[[int, torch.dtype], Tensor]
"""Makes a vector of so many elements, of any content: an endpoint's empty(), for instance."""


def ordinary(elements: int, dtype: torch.dtype) -> Tensor:
    """A vector in memory of this process."""
    return torch.empty(elements, dtype=dtype)


class BufferPool:
    """The memory of averages that nobody reads any more."""

    def __init__(self, empty: Empty = ordinary) -> None:
        self._empty = empty
        self._free: dict[tuple[int, torch.dtype], list[Tensor]] = {}
        self._out: dict[int, Tensor] = {}

    def take(self, elements: int, dtype: torch.dtype) -> Tensor:
        """A vector (elements,) of any content."""
        free = self._free.get((elements, dtype))
        vector = free.pop() if free else self._empty(elements, dtype)
        if elements:
            self._out[vector.data_ptr()] = vector
        return vector

    def give(self, vector: Tensor) -> None:
        """Take back what nobody reads any more; a vector that was not lent is left alone."""
        lent = self._out.pop(vector.data_ptr(), None)
        if lent is not None:
            self._free.setdefault((lent.numel(), lent.dtype), []).append(lent)

    def forget(self, vector: Tensor) -> None:
        """Somebody may go on reading it."""
        self._out.pop(vector.data_ptr(), None)
