"""A micro-batch's backward: whole, or in two parts of which the first is what its stage sends back.

The first part runs the graph for its inputs alone, and notes the gradient that arrives at each node of the frontier
(frontier.py). The second begins there, and runs for the parameters alone. Every product is computed once, by torch's
own functions, so that the gradients are those of a whole backward; whether that is so for a stage is tried on its first
micro-batch, and a stage for which it is not keeps to whole ones. Decides nothing about order.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from ravnest.stage.gradient_feed import Root, backward_from
from ravnest.stage.split_backward import Frontier, NotSplittable, frontier_of
from ravnest.training.weights import ParameterSet

ROUNDING = 64
"""Gradients agree when they differ by at most so many units of their dtype's precision, in proportion to their norm."""


@dataclass
class Graph:
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


def whole(graph: Graph, received: Sequence[Tensor], *, keep: bool = False) -> None:
    """keep: the graph can be run again."""
    end = graph.end(received)
    if end is not None:
        end.backward(retain_graph=keep)  # type: ignore[no-untyped-call]
        _set_apart(graph, _gradients(graph))


@dataclass
class WeightPass:
    """The second part of a split backward, to be run once. Holds what is left of the graph."""

    _calls: list[tuple[list[GradientEdge], list[Tensor], list[Tensor]]] = field(default_factory=list)

    @property
    def kept(self) -> list[Tensor]:
        """The gradients that it begins with."""
        return [tensor for _, gradients, _ in self._calls for tensor in gradients]

    def run(self, *, keep: bool = False) -> None:
        """Add to the parameters' `grad`. keep: the graph can be run again."""
        for edges, gradients, leaves in self._calls:
            backward_from(edges, gradients, leaves, keep=keep)


class Splitter:
    """Splits the backwards of one stage."""

    def __init__(self) -> None:
        self.refused: str | None = None
        """Why this stage's backward cannot be split, once tried."""
        self.tried = False
        self._frontiers: dict[tuple[torch.Size, ...], Frontier] = {}

    def input_gradients(self, graph: Graph, received: Sequence[Tensor]) -> WeightPass:
        """Sets the `grad` of the graph's inputs. Raises NotSplittable where a frontier cannot be found."""
        end = graph.end(received)
        if end is None:
            return WeightPass()
        return self._first_part(end, graph)

    def try_out(self, graph: Graph, received: Sequence[Tensor]) -> None:
        """A whole backward, after a split one of the same graph, whose gradients it has to equal: see `refused`.

        No parameter of the graph may have a gradient yet.
        """
        self.tried = True
        end = graph.end(received)
        if end is None:
            self.refused = "nothing here takes a gradient"
            return
        named = {**graph.parameters, **{f"input {i}": tensor for i, tensor in enumerate(graph.inputs)}}
        found: dict[str, Tensor | None] = {}
        try:
            self._first_part(end, graph).run(keep=True)
            found = {name: tensor.grad for name, tensor in named.items()}
        except (RuntimeError, NotImplementedError, NotSplittable) as error:
            self.refused = str(error).splitlines()[0] if str(error) else type(error).__name__
        for tensor in named.values():
            tensor.grad = None
        end.backward()  # type: ignore[no-untyped-call]
        _set_apart(graph, _gradients(graph))
        if self.refused is None:
            self.refused = _differences(found, named)

    def _first_part(self, end: Tensor, graph: Graph) -> WeightPass:
        inputs = [tensor for tensor in graph.inputs if tensor.requires_grad]
        root = end.grad_fn
        if root is None or not inputs:
            raise NotSplittable("nothing here is sent back")
        shapes = tuple(tensor.shape for tensor in graph.inputs)
        frontier = self._frontiers.get(shapes)
        if frontier is None:
            frontier = self._frontiers[shapes] = frontier_of(root, inputs, graph.parameters)
        groups = frontier.find(root)
        arrived: dict[Node, tuple[Tensor | None, ...]] = {}
        hooks = [node.register_prehook(_note(arrived, node)) for nodes, _ in groups for node in nodes]
        try:
            gradients = torch.autograd.grad(end, inputs, retain_graph=True, allow_unused=True)
        finally:
            for hook in hooks:
                hook.remove()
        for tensor, gradient in zip(inputs, gradients, strict=True):
            tensor.grad = gradient
        rest = WeightPass()
        for nodes, names in groups:
            begun = [(GradientEdge(n, i), g) for n in nodes for i, g in enumerate(arrived.get(n, ())) if g is not None]
            if begun:
                leaves: list[Tensor] = [graph.parameters[name] for name in names]
                rest._calls.append(([edge for edge, _ in begun], [g for _, g in begun], leaves))
        _set_apart(graph, rest.kept)  # which become gradients of parameters
        return rest


def _gradients(graph: Graph) -> list[Tensor]:
    return [parameter.grad for parameter in graph.parameters.values() if parameter.grad is not None]


def _set_apart(graph: Graph, others: Iterable[Tensor]) -> None:
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


def _note(arrived: dict[Node, tuple[Tensor | None, ...]], node: Node) -> Callable[[tuple[Tensor, ...]], None]:
    def hook(gradients: tuple[Tensor, ...]) -> None:
        arrived[node] = gradients

    return hook


def _differences(found: Mapping[str, Tensor | None], expected: Mapping[str, Tensor]) -> str | None:
    """What is wrong with the gradients of a split backward; None where nothing is."""
    for name, tensor in expected.items():
        ours, theirs = found[name], tensor.grad
        if ours is None and theirs is None:
            continue
        if ours is None or theirs is None:
            return f"{name} has a gradient in one kind of backward only"
        allowed = ROUNDING * torch.finfo(theirs.dtype).eps * float(theirs.norm())
        if not float((ours - theirs).norm()) <= allowed:
            return f"the gradient of {name} is another"
    return None
