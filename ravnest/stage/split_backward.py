"""Where parameters enter a graph: what a split backward needs to know of it.

Nodes from which an input can be reached are on the path of the input gradients. A node on it that also leads to
parameters by the side is on the frontier: once the gradient that arrives there is known, those parameters' gradients
need nothing else. Frontier nodes that share a parameter form one group. Decides what belongs together; runs nothing.

Looking costs some microseconds a node, so it is done once: the graphs of one stage differ in nothing but their tensors,
and a Frontier finds the same nodes in the next one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge

from ravnest.errors import RunFailed

Below = dict[Node, tuple[Node, ...]]
"""Each node's next ones, every node after all that it leads to."""


class NotSplittable(RunFailed):
    """The graph's weight gradients cannot be computed after its input gradients."""


@dataclass(frozen=True)
class Frontier:
    """Of one stage's graphs. `steps`: node i + 1 is the `steps[i][1]`-th next function of node `steps[i][0]`, node 0
    the root. `groups`: the numbers of frontier nodes, their kinds, and the names of the parameters that they alone lead
    to by the side.
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
    """A way to each node of the path, along the path."""
    numbers, steps, queue = {root: 0}, [], [root]
    for node in queue:
        for place, (after, _) in enumerate(node.next_functions):
            if after is not None and after in path and after not in numbers:
                numbers[after] = len(numbers)
                steps.append((numbers[node], place))
                queue.append(after)
    return numbers, tuple(steps)


def _groups(below: Below, path: set[Node]) -> list[tuple[list[Node], list[Tensor]]]:
    """(frontier nodes, leaves) of each group."""
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
