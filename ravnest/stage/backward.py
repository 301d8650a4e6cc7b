"""The whole backward of a micro-batch: the graph that its forward leaves, and the root where gradients are fed in.

`torch.autograd.backward` takes gradients too, but keeps the outputs alive for it, which have long been sent, and
imports torch's symbolic shapes and sympy to compare sizes: 33 MiB in every stage. A root of our own does neither.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ravnest.training.weights import ParameterSet


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


@dataclass
class MicroBatchGraph:
    """What a micro-batch keeps between its forward and its backward."""

    inputs: tuple[Tensor, ...]
    """Leaves, whose `grad` the backward sets."""
    root: Tensor | Root | None
    """The end: the loss at the last stage; None where nothing takes a gradient."""
    fed: tuple[int, ...]
    """Which of the gradients that arrive go into the root."""
    parameters: ParameterSet
    """What its forward used; the backward adds to their `grad`."""
    scale: float = 1.0
    """What all gradients are multiplied by."""

    def end(self, received: Sequence[Tensor]) -> Tensor | None:
        """What to run backward, given all that arrived."""
        if isinstance(self.root, Root):
            fed = [received[place] for place in self.fed]
            return self.root.feed(fed if self.scale == 1.0 else [gradient * self.scale for gradient in fed])
        return self.root if self.root is None or self.scale == 1.0 else self.root * self.scale


def whole(graph: MicroBatchGraph, received: Sequence[Tensor], *, keep: bool = False) -> None:
    """keep: the graph can be run again."""
    end = graph.end(received)
    if end is not None:
        end.backward(retain_graph=keep)  # type: ignore[no-untyped-call]
        set_apart(graph, gradients_of(graph))


def gradients_of(graph: MicroBatchGraph) -> list[Tensor]:
    return [parameter.grad for parameter in graph.parameters.values() if parameter.grad is not None]


def set_apart(graph: MicroBatchGraph, others: Iterable[Tensor]) -> None:
    """Move the inputs' gradients out of memory that any of `others` lies in.

    Where the paths to an input and a parameter end in views, autograd leaves one tensor on both. The next micro-batch
    adds to the parameter's in place, and the input's may still wait to be sent by then.
    """
    inputs = [tensor for tensor in graph.inputs if tensor.grad is not None]
    taken = {other.untyped_storage().data_ptr() for other in others} if inputs else set()
    for tensor in inputs:
        assert tensor.grad is not None
        if tensor.grad.untyped_storage().data_ptr() in taken:
            tensor.grad = tensor.grad.clone()
