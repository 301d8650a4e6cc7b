"""Runs the whole backward of a micro-batch, at float16's scale and after a second forward where it takes them.

In: the autograd graph of one micro-batch's forward, and the gradients of its outputs. Out: gradients on the stage's
parameters and inputs.

`torch.autograd.backward` takes gradients too. But it keeps the outputs alive, which have long been sent, and it imports
torch's symbolic shapes and sympy to compare sizes, which takes 33 MiB in every stage. `Root` does neither.

Activation checkpointing: a stage may drop the activations of each forward and run it again before the backward. The
second forward uses the weights, the buffers and the stream of random numbers of the first, so it computes the very same
numbers. Its writes to buffers are undone, so that batch-norm's statistics are updated once for each micro-batch.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ravnest.splitting import StageModule, StageProgram
from ravnest.training.batches import Target
from ravnest.training.precision import LossScale
from ravnest.training.weights import ParameterSet


class Root:
    """Stands for those outputs of one forward that take a gradient. It keeps their graph alive, not the outputs."""

    def __init__(self, outputs: Sequence[Tensor]) -> None:
        """Make the root of `outputs`: at least one tensor, each of which requires a gradient."""
        self._gradients: list[Tensor] = []  # shared with the graph, which must not refer to its own end
        self._end: Tensor = _Feed.apply(self._gradients, *outputs)  # type: ignore[no-untyped-call]

    def feed(self, gradients: Sequence[Tensor]) -> Tensor:
        """Take one gradient for each output, of its shape and dtype. Return the scalar whose backward is the backward
        of the outputs with these gradients; that backward raises RuntimeError if they do not fit."""
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
    """The stage's inputs. They are leaves, and the backward sets their `grad`."""
    root: Tensor | Root | None
    """The end of the graph, which is the loss at the last stage. It is None where nothing takes a gradient."""
    fed: tuple[int, ...]
    """The positions, among the gradients that arrive, of those that go into the root."""
    parameters: ParameterSet
    """The parameters that the forward used. The backward adds to their `grad`."""
    scale: float = 1.0
    """The factor that all gradients are multiplied by."""

    def end(self, received: Sequence[Tensor]) -> Tensor | None:
        """The scalar to run backward, given all gradients that arrived; None where nothing takes a gradient."""
        if isinstance(self.root, Root):
            fed = [received[place] for place in self.fed]
            return self.root.feed(fed if self.scale == 1.0 else [gradient * self.scale for gradient in fed])
        return self.root if self.root is None or self.scale == 1.0 else self.root * self.scale


def whole(graph: MicroBatchGraph, received: Sequence[Tensor], *, keep: bool = False) -> None:
    """Run the whole backward of `graph`. keep: the graph is kept, so that the backward can be run again."""
    end = graph.end(received)
    if end is not None:
        end.backward(retain_graph=keep)  # type: ignore[no-untyped-call]
        set_apart(graph, gradients_of(graph))


def gradients_of(graph: MicroBatchGraph) -> list[Tensor]:
    """The gradients of those of the graph's parameters that have one."""
    return [parameter.grad for parameter in graph.parameters.values() if parameter.grad is not None]


def set_apart(graph: MicroBatchGraph, others: Iterable[Tensor]) -> None:
    """Copy each gradient of an input that shares memory with one of `others`.

    Where the paths to an input and to a parameter end in views, autograd leaves one tensor on both. The next
    micro-batch adds to the parameter's gradient in place, and the input's may still wait to be sent by then.
    """
    inputs = [tensor for tensor in graph.inputs if tensor.grad is not None]
    taken = {other.untyped_storage().data_ptr() for other in others} if inputs else set()
    for tensor in inputs:
        assert tensor.grad is not None
        if tensor.grad.untyped_storage().data_ptr() in taken:
            tensor.grad = tensor.grad.clone()


def scaled_backward(
    graph: MicroBatchGraph,
    received: Sequence[Tensor],
    scale: LossScale,
    run: Callable[[MicroBatchGraph, Sequence[Tensor]], None],
) -> None:
    """Run a whole backward in float16, at a scale at which nothing overflows.

    run: runs the backward of a graph, and keeps the graph. The gradients that it leaves on parameters and inputs are
    those of this micro-batch alone, at their true size. Raises RunFailed where no scale avoids an overflow.
    """
    leaves = [*graph.parameters.values(), *(tensor for tensor in graph.inputs if tensor.requires_grad)]
    while True:
        for leaf in leaves:
            leaf.grad = None
        graph.scale = scale.value
        run(graph, received)
        gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
        if not gradients or bool(torch.stack(torch._foreach_norm(gradients)).isfinite().all()):
            break
        scale.overflowed()
    scale.was_fine()
    if gradients:
        torch._foreach_mul_(gradients, 1.0 / graph.scale)


@dataclass
class Forgotten:
    """What is kept of a micro-batch whose forward will be run again."""

    inputs: tuple[Tensor, ...]
    """The stage's inputs, which are leaves."""
    target: Target
    """The target at the last stage, and an empty tensor at every other."""
    parameters: ParameterSet
    """The parameters that the first forward used."""
    buffers: Mapping[str, Tensor]
    """The buffers that the first forward may have written, as it found them."""
    answers: deque[Any]
    """What experts of others answered in the first forward (ravnest/job/experts_table.py)."""


class Replayer:
    """Puts one stage's module back into the state in which a forward found it."""

    def __init__(self, program: StageProgram, module: StageModule) -> None:
        self._module = module
        # Operators do not declare all that they write (batch-norm's statistics), but what they write is saved.
        names = {spec.name for spec in program.buffers if spec.persistent} | {*program.changed}
        self._learning = tuple(spec.name for spec in program.buffers if spec.name in names)

    def buffers(self) -> dict[str, Tensor]:
        """Copies of the buffers that a forward may write. This is to be called before the forward."""
        every = dict(self._module.named_buffers())
        return {name: every[name].clone() for name in self._learning}

    @contextmanager
    def as_it_was(self, forgotten: Forgotten, now: ParameterSet) -> Iterator[None]:
        """While the context is open, the module is as the first forward found it; in it the forward is run again.

        now: the parameters that the module has, and gets back. The context can be opened once for each `forgotten`,
        since the second forward writes into `forgotten.buffers`.
        """
        module = self._module
        every = dict(module.named_buffers())
        changed = [name for name, then in forgotten.parameters.items() if then is not now[name]]
        try:
            for name in changed:
                module.set_parameter(name, forgotten.parameters[name])
            for name, tensor in forgotten.buffers.items():
                module.set_buffer(name, tensor)
            yield
        finally:
            for name in changed:
                module.set_parameter(name, now[name])
            for name in forgotten.buffers:
                module.set_buffer(name, every[name])
