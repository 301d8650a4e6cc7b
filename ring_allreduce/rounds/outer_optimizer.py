"""The outer optimizer: from the average of all members' progress to the step that the anchor takes. Pure.

In: the average of a round. Out: the step δ. (Design §7.) Without an outer optimizer (None) the anchor takes the
average itself, which is parameter averaging. With Nesterov's momentum it is that of DiLoCo (2023), where the average
takes the place of a negative gradient:

    v ← μ v + ḡ        δ = lr (ḡ + μ v)

Every member computes δ for itself from the same bytes, so each operation here rounds by itself: a fused multiply-add
gives other bits on machines that have it than on those that have not.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ring_allreduce.errors import InvalidInput

_MOMENTUM = "momentum"


class Nesterov:
    """Nesterov's momentum over rounds, for one segment. Give it to `Progress`, one for each."""

    def __init__(self, lr: float = 0.7, momentum: float = 0.9) -> None:
        """`lr`: what is taken of each step; `momentum`: what is kept of v, in [0, 1). The defaults are DiLoCo's."""
        if not (math.isfinite(lr) and lr > 0 and 0 <= momentum < 1):
            raise InvalidInput(f"Nesterov needs lr > 0 and 0 <= momentum < 1, got {lr} and {momentum}")
        self._lr = lr
        self._momentum = momentum
        self._velocity: Tensor | None = None

    def __call__(self, average: Tensor) -> Tensor:
        """δ (elements,), a new tensor; `average` is left as it is. v moves: once for each merged round."""
        if self._velocity is None:
            self._velocity = torch.zeros_like(average)
        self._velocity.mul_(self._momentum).add_(average)
        return (self._velocity * self._momentum).add_(average).mul_(self._lr)

    def state(self) -> dict[str, Tensor]:
        """Return what a checkpoint needs besides the anchor: live tensors, empty before the first round."""
        return {} if self._velocity is None else {_MOMENTUM: self._velocity}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state()` gave; copied. Raises InvalidInput for anything else."""
        if not state:
            self._velocity = None
            return
        velocity = state.get(_MOMENTUM)
        if velocity is None or len(state) != 1 or velocity.dim() != 1 or velocity.dtype != torch.float32:
            found = {key: (value.dtype, tuple(value.shape)) for key, value in state.items()}
            raise InvalidInput(f"the state of Nesterov is a flat float32 {_MOMENTUM!r}, got {found}")
        self._velocity = velocity.clone()
