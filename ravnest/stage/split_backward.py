"""A backward in two parts, of which the first computes what its stage sends back.

In: the graph of a micro-batch, and the gradients of its outputs. Out: first the gradients of its inputs, then those of
the parameters.

The first part runs the graph for its inputs alone, and notes the gradient that arrives at each node of the frontier.
The second part begins there, and runs for the parameters alone. Every product is computed once, by torch's own
functions, so that the gradients are those of a whole backward. Whether that is so for a stage is tried on its first
micro-batch, and a stage for which it is not keeps to whole backwards.

The frontier is where parameters enter the graph. Nodes from which an input can be reached are on the path of the input
gradients. A node on this path that also leads to parameters by the side is on the frontier: once the gradient that
arrives there is known, those parameters' gradients need nothing else. Frontier nodes that share a parameter form one
group. To find them costs some microseconds a node, so it is done once: the graphs of one stage differ in nothing but
their tensors, and a `Frontier` finds the same nodes in the next one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from ravnest.errors import RunFailed
from ravnest.stage.backward import MicroBatchGraph, gradients_of, set_apart

ROUNDING = 64
"""Gradients agree where the norm of their difference is at most this many times eps of their dtype times their norm."""

Below = dict[Node, tuple[Node, ...]]
"""The next nodes of each node. Every node comes after all nodes that it leads to."""


class NotSplittable(RunFailed):
    """The graph's weight gradients cannot be computed after its input gradients."""


@dataclass(frozen=True)
class Frontier:
    """The frontier of one stage's graphs.

    steps: node i + 1 is the `steps[i][1]`-th next function of node `steps[i][0]`. Node 0 is the root.
    groups: for each group the numbers of its frontier nodes, their kinds, and the names of the parameters that they
    alone lead to by the side.
    """

    steps: tuple[tuple[int, int], ...]
    groups: tuple[tuple[tuple[int, ...], tuple[str, ...], tuple[str, ...]], ...]

    def find(self, root: Node) -> list[tuple[list[Node], tuple[str, ...]]]:
        """Each group's nodes in the graph that ends in `root`, and its parameters.

        Raises NotSplittable where this graph is another than the one that was looked at.
        """
        nodes: list[Node] = [root]
        for parent, place in self.steps:
            nexts = nodes[parent].next_functions
            after = nexts[place][0] if place < len(nexts) else None
            if after is None:
                raise NotSplittable("the graph has another form than that of the first micro-batch")
            nodes.append(after)
        found = [([nodes[number] for number in numbers], kinds, names) for numbers, kinds, names in self.groups]
        if any(tuple(node.name() for node in at) != kinds for at, kinds, _ in found):
            raise NotSplittable("the graph has other operations than that of the first micro-batch")
        return [(at, names) for at, _, names in found]


def frontier_of(root: Node, inputs: Sequence[Tensor], parameters: Mapping[str, Tensor]) -> Frontier:
    """The frontier between `inputs` and `parameters`, all of them leaves, in the graph that ends in `root`.

    Raises NotSplittable where the root does not depend on the inputs, and where a parameter is used twice, once
    behind the other use: the gradient of the first would have to pass the second.
    """
    below = _walk(root)
    path = {get_gradient_edge(tensor).node for tensor in inputs if tensor.requires_grad}
    for node, nexts in below.items():
        if any(after in path for after in nexts):
            path.add(node)
    if root not in path:
        raise NotSplittable("what the stage sends does not depend on what it receives")
    name_of = {id(parameter): name for name, parameter in parameters.items()}
    numbers, steps = _steps(root, path)
    groups = [
        (tuple(numbers[n] for n in nodes), tuple(n.name() for n in nodes), tuple(name_of[id(p)] for p in leaves))
        for nodes, leaves in _groups(below, path)
    ]
    return Frontier(steps, tuple(groups))


def _walk(root: Node) -> Below:
    below: Below = {}
    begun: set[Node] = set()
    stack: list[tuple[Node, tuple[Node, ...] | None]] = [(root, None)]
    while stack:
        node, nexts = stack.pop()
        if nexts is not None:
            below[node] = nexts
        elif node not in begun:
            begun.add(node)
            nexts = tuple(after for after, _ in node.next_functions if after is not None)
            stack.append((node, nexts))
            stack += [(after, None) for after in nexts if after not in begun]
    return below


def _steps(root: Node, path: set[Node]) -> tuple[dict[Node, int], tuple[tuple[int, int], ...]]:
    """The number of each node of the path, and a step to it from an earlier one."""
    numbers, steps, queue = {root: 0}, [], [root]
    for node in queue:
        for place, (after, _) in enumerate(node.next_functions):
            if after is not None and after in path and after not in numbers:
                numbers[after] = len(numbers)
                steps.append((numbers[node], place))
                queue.append(after)
    return numbers, tuple(steps)


def _groups(below: Below, path: set[Node]) -> list[tuple[list[Node], list[Tensor]]]:
    """The frontier nodes and the leaves of each group."""
    owner: dict[Node, int] = {}  # of nodes by the side
    groups: dict[int, tuple[list[Node], list[Tensor]]] = {}
    for mine, (node, nexts) in enumerate(below.items()):
        side = [after for after in nexts if after not in path]
        if node not in path or not side:
            continue
        groups[mine] = ([node], [])
        while side:
            at = side.pop()
            if at not in owner:
                owner[at] = mine
                groups[mine][1].extend(_variable(at) if not below[at] else ())
                side += below[at]
            elif owner[at] != mine:
                nodes, leaves = groups.pop(owner[at])
                _require_apart(nodes, groups[mine][0], below)
                groups[mine][0].extend(nodes)
                groups[mine][1].extend(leaves)
                owner.update({each: mine for each, of in owner.items() if of not in groups})
    return list(groups.values())


def _require_apart(nodes: Sequence[Node], others: Sequence[Node], below: Below) -> None:
    for first, seconds in ((nodes, others), (others, nodes)):
        reached, stack = set(first), list(first)
        while stack:
            for after in below[stack.pop()]:
                if after not in reached:
                    reached.add(after)
                    stack.append(after)
        if not reached.isdisjoint(seconds):
            raise NotSplittable("a parameter is used twice, once behind the other use")


def _variable(leaf: Node) -> tuple[Tensor]:
    variable = getattr(leaf, "variable", None)
    if not isinstance(variable, Tensor):
        raise NotSplittable(f"the graph ends in {leaf.name()}, which is no parameter")
    return (variable,)


@dataclass
class WeightPass:
    """The second part of a split backward, which is to be run once. It holds what is left of the graph."""

    _calls: list[tuple[list[GradientEdge], list[Tensor], list[Tensor]]] = field(default_factory=list)

    @property
    def kept(self) -> list[Tensor]:
        """The gradients that this part begins with."""
        return [tensor for _, gradients, _ in self._calls for tensor in gradients]

    def run(self, *, keep: bool = False) -> None:
        """Add to the parameters' `grad`. keep: the graph is kept, so that it can be run again."""
        for edges, gradients, leaves in self._calls:
            _backward_from(edges, gradients, leaves, keep=keep)


class Splitter:
    """Splits the backwards of one stage."""

    def __init__(self, refused: str | None = None) -> None:
        """`refused`: why this stage's backward may not even be tried."""
        self.refused = refused
        """Why this stage's backward cannot be split; None where it can be, or was not tried yet."""
        self.tried = refused is not None
        self._frontiers: dict[tuple[torch.Size, ...], Frontier] = {}

    def input_gradients(self, graph: MicroBatchGraph, received: Sequence[Tensor]) -> WeightPass:
        """Run the first part, which sets the `grad` of the graph's inputs. Returns the second part.

        Raises NotSplittable where a frontier cannot be found.
        """
        end = graph.end(received)
        if end is None:
            return WeightPass()
        return self._first_part(end, graph)

    def try_out(self, graph: MicroBatchGraph, received: Sequence[Tensor]) -> None:
        """Run a split backward and then a whole one of the same graph. Their gradients have to be equal; `refused` says
        what is wrong where they are not.

        The gradients of the whole one stay. No parameter of the graph may have a gradient before.
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
        set_apart(graph, gradients_of(graph))
        if self.refused is None:
            self.refused = _differences(found, named)

    def _first_part(self, end: Tensor, graph: MicroBatchGraph) -> WeightPass:
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
        set_apart(graph, rest.kept)  # which become gradients of parameters
        return rest


def _note(arrived: dict[Node, tuple[Tensor | None, ...]], node: Node) -> Callable[[tuple[Tensor, ...]], None]:
    def hook(gradients: tuple[Tensor, ...]) -> None:
        arrived[node] = gradients

    return hook


def _differences(found: Mapping[str, Tensor | None], expected: Mapping[str, Tensor]) -> str | None:
    """The reason why gradients of a split backward are wrong; None where they are right."""
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


def _backward_from(
    edges: Sequence[GradientEdge], gradients: Sequence[Tensor], leaves: Sequence[Tensor], *, keep: bool
) -> None:
    """Run a graph backward from `edges`, with one gradient for each, and add to the `grad` of `leaves` only.

    keep: the graph is kept, so that it can be run again.
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
