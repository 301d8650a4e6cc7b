"""The end of a stage's graph, where the gradients that arrive for its outputs are fed in.

torch.autograd.backward takes gradients, too, but keeps the outputs alive for it, which have long been sent, and imports
torch's symbolic shapes and sympy to compare sizes: 33 MiB in every stage. A root of our own does neither. A backward
that begins in the middle of a graph has no root, and is given to torch's engine as it is.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge


class Root:
    """Stands for those outputs of one forward that take a gradient. Keeps their graph, not the outputs."""

    def __init__(self, outputs: Sequence[Tensor]) -> None:
        """Each of `outputs` requires a gradient; there is at least one."""
        self._gradients: list[Tensor] = []  # shared with the graph, which must not refer to its own end
        self._end: Tensor = _Feed.apply(self._gradients, *outputs)  # type: ignore[no-untyped-call]

    def feed(self, gradients: Sequence[Tensor]) -> Tensor:
        """Takes one gradient for each output, of its shape and dtype. Returns the number whose backward is the outputs'
        with these gradients, and raises RuntimeError if they do not fit."""
        self._gradients[:] = gradients
        return self._end


class _Feed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradients: list[Tensor], *outputs: Tensor) -> Tensor:
        ctx.gradients = gradients
        return outputs[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        return None, *ctx.gradients


def backward_from(
    edges: Sequence[GradientEdge], gradients: Sequence[Tensor], leaves: Sequence[Tensor], *, keep: bool
) -> None:
    """Run a graph backward from `edges`, with one gradient for each, and add to the `grad` of `leaves` only.

    keep: the graph can be run again.
    """
    engine = torch.autograd.Variable._execution_engine
    engine.run_backward(
        tuple(edges),
        tuple(gradients),
        keep,
        False,  # create_graph
        tuple(leaves),
        allow_unreachable=True,
        accumulate_grad=True,
    )
