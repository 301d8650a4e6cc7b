"""What `doctor` holds machines to: of a plan its stages and who exchanges with whom, of nodes.yaml every pair.

Pure: reads a plan or a fleet, and asks nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise

from cluster_planner import Fleet, Node, NodeData, Plan
from ravnest.profiling.pairing import ALL_PAIRS_UP_TO, Pair, sampled_pairs

SAMPLED_PEERS = 6


@dataclass(frozen=True)
class RequiredNode:
    """A node that a run would use."""

    name: str
    address: str | None = None
    device: str = "cpu"
    data: NodeData | None = None


@dataclass(frozen=True)
class Requirements:
    """`memory_bytes`: by node that has a stage; `readers`: nodes that read the data."""

    nodes: Sequence[RequiredNode]
    pairs: Sequence[Pair] = ()
    latencies_s: Mapping[Pair, float] = field(default_factory=dict)
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    readers: frozenset[str] = frozenset()


def requirements_of_plan(plan: Plan) -> Requirements:
    """Of the nodes that it gives a stage; spares are not held to anything."""
    memory: dict[str, int] = {}
    pairs: set[Pair] = set()
    readers: set[str] = set()
    for cluster, predicted in zip(plan.clusters, plan.predicted.clusters, strict=True):
        names = [stage.node for stage in cluster.stages]
        readers |= {names[0], names[-1]}
        pairs |= {_pair(a, b) for a, b in pairwise(names) if a != b}
        for name, stage in zip(names, predicted.stages, strict=True):
            memory[name] = memory.get(name, 0) + stage.memory_bytes
    for ring in plan.rings:
        members = [plan.cluster(cluster).stages[stage].node for cluster, stage in ring.members]
        pairs |= {_pair(a, b) for a, b in combinations(dict.fromkeys(members), 2)}
    used = [_wanted(node) for node in plan.fleet.nodes if node.name in memory]
    return Requirements(used, sorted(pairs), _latencies(plan.fleet, pairs), memory, frozenset(readers))


def requirements_of_fleet(fleet: Fleet) -> Requirements:
    """All nodes, and all pairs where they are few, else a sample."""
    pairs = _pairs(fleet.names)
    return Requirements([_wanted(node) for node in fleet.nodes], pairs, _latencies(fleet, pairs))


def requirements_of_members(addresses: Mapping[str, str | None]) -> Requirements:
    """The same of nodes of which only names and addresses are known."""
    return Requirements([RequiredNode(name, address) for name, address in addresses.items()], _pairs(list(addresses)))


def _pairs(names: Sequence[str]) -> Sequence[Pair]:
    if len(names) > ALL_PAIRS_UP_TO:
        return sampled_pairs(names, SAMPLED_PEERS, 0)
    return sorted(_pair(a, b) for a, b in combinations(names, 2))


def _wanted(node: Node) -> RequiredNode:
    return RequiredNode(node.name, node.address, node.device, node.data)


def _latencies(fleet: Fleet, pairs: Sequence[Pair] | set[Pair]) -> dict[Pair, float]:
    known = {_pair(link.a, link.b): link.latency_s for link in fleet.links}
    return {pair: known[pair] for pair in pairs if pair in known}


def _pair(a: str, b: str) -> Pair:
    return (a, b) if a <= b else (b, a)
