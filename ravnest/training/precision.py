"""The precisions that a job may compute in, and the scale that keeps float16's gradients from vanishing.

Weights, gradients and the optimizer stay in float32 whatever the precision: autocast (ravnest/stage/mixed_precision.py)
chooses
by operation. bfloat16 has float32's range. float16 has not: small gradients round to 0 and large ones to infinity, so a
backward is run on gradients times a scale, and what comes out is divided by it. The scale is a power of two, so that
this rounds nothing. Pure.
"""

from typing import Literal, TypeAlias

from ravnest.errors import RunFailed

Precision: TypeAlias = Literal["float32", "bfloat16", "float16"]

FIRST_SCALE = 2.0**16
LARGEST_SCALE = 2.0**24
SMALLEST_SCALE = 2.0**-24
GROW_AFTER = 2000
"""Backwards in a row without an overflow."""


class LossScale:
    """One stage's: halved at each overflow, doubled after a long time without."""

    def __init__(self, value: float = FIRST_SCALE) -> None:
        self.value = value
        self.overflows = 0
        """In all."""
        self._fine = 0

    def overflowed(self) -> None:
        """Raises RunFailed where no scale helps: the gradient that arrived is itself beyond all bounds."""
        self.overflows += 1
        self._fine = 0
        self.value /= 2
        if self.value < SMALLEST_SCALE:
            raise RunFailed("a gradient is not finite at any scale: training has diverged (lower optimizer.lr)")

    def was_fine(self) -> None:
        self._fine += 1
        if self._fine >= GROW_AFTER:
            self._fine = 0
            self.value = min(2 * self.value, LARGEST_SCALE)
