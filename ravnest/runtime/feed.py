"""The end of a stage's graph, where the gradients that arrive for its outputs are fed in.

torch.autograd.backward takes gradients, too, but keeps the outputs alive for it, which have long been sent, and imports
torch's symbolic shapes and sympy to compare sizes: 33 MiB in every stage. A root of our own does neither.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Root:
    """Stands for those outputs of one forward that take a gradient. Keeps their graph, not the outputs."""

    def __init__(self, outputs: Sequence[Tensor]) -> None:
        """Each of `outputs` requires a gradient; there is at least one."""
        self._gradients: list[Tensor] = []  # shared with the graph, which must not refer to its own end
        self._end: Tensor = _Feed.apply(self._gradients, *outputs)  # type: ignore[no-untyped-call]

    def backward(self, gradients: Sequence[Tensor]) -> None:
        """One gradient for each output, of its shape and dtype; RuntimeError otherwise. Once."""
        self._gradients += gradients
        self._end.backward()  # type: ignore[no-untyped-call]


class _Feed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradients: list[Tensor], *outputs: Tensor) -> Tensor:
        ctx.gradients = gradients
        return outputs[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        return None, *ctx.gradients
