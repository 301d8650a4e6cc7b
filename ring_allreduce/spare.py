"""Vectors that are used again: fresh pages cost more than the numbers that are written to them."""

import torch
from torch import Tensor


class Spare:
    """The memory of averages that nobody reads any more."""

    def __init__(self) -> None:
        self._free: dict[tuple[int, torch.dtype], list[Tensor]] = {}
        self._lent: dict[int, Tensor] = {}

    def take(self, elements: int, dtype: torch.dtype) -> Tensor:
        """A vector (elements,) of any content."""
        free = self._free.get((elements, dtype))
        vector = free.pop() if free else torch.empty(elements, dtype=dtype)
        if elements:
            self._lent[vector.data_ptr()] = vector
        return vector

    def give(self, vector: Tensor) -> None:
        """Take back what nobody reads any more; a vector that was not lent is left alone."""
        lent = self._lent.pop(vector.data_ptr(), None)
        if lent is not None:
            self._free.setdefault((lent.numel(), lent.dtype), []).append(lent)

    def forget(self, vector: Tensor) -> None:
        """Somebody may go on reading it."""
        self._lent.pop(vector.data_ptr(), None)
