"""The machines of a run, and the link between any two of them.

The link between two nodes is, in this order: the measured one; the link within their host; the link between their
regions; an estimate from the shortest path over what is known (links.py); a stated default. Nodes of one host share its
uplink and its downlink, and reach each other without using either. All values are SI: seconds, bytes, FLOP/s.

`FleetArrays` says the same for many pairs of nodes at once, as arrays. What regions and hosts tell is looked up in
tables; pairs that may have been measured, or that have to be estimated, ask the fleet. In fleets of up to DENSE_NODES
nodes all pairs are kept.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from cluster_planner.errors import InvalidInput
from cluster_planner.inputs.constraints import ALL_DAY, UNCONSTRAINED, Constraints, GroupingRules, did_you_mean
from cluster_planner.inputs.links import (
    DEFAULT_LATENCY_S,
    DEFAULT_REGION_LATENCY_S,
    HOST_BYTES_PER_S,
    HOST_LATENCY_S,
    Edge,
    Graph,
    Link,
    RegionLink,
    latency_graph,
    shortest_from,
)

Floats: TypeAlias = NDArray[np.float64]
Numbers = Sequence[int] | NDArray[np.int64]
DENSE_NODES = 600

PROCESS_BYTES = 336 << 20
"""What a stage's process holds before any tensor of the model: Python, torch and Ray. The pages of libraries count,
since no other process shares them where a machine runs one stage. A run's metrics.jsonl has it (lines of kind `stage`):
295 to 312 MiB with tests/support/jobs and torch 2.13.0 for CPU."""

CUDA_PROCESS_BYTES = 800 << 20
"""What a process that trains takes of a GPU's memory beside its tensors: CUDA's context, kernels and their workspaces.
On an H200 with torch 2.11 it was some 770 MiB (measured once). `ravnest profile` measures it for each GPU."""

CUDA_HOST_BYTES = 2 << 30
"""What it holds of its machine's own memory before any tensor. It is assumed, and was never measured."""

NODE_NAME = re.compile(r"[^\W_][\w .:@+-]{0,63}")
"""A node's name: none of them is a path to somewhere else, and none breaks a line."""


@dataclass(frozen=True)
class NodeData:
    """The place where a node finds the job's data, if not where the job says."""

    factory: str | None = None
    """The data factory in place of the job's; None stands for the same one."""
    args: Mapping[str, object] = field(default_factory=dict, hash=False)
    """The arguments of that factory. Without a factory, they replace those of the job's own."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """One machine, or one GPU of it. `flops_per_s` is sustained on this job's kind of work."""

    name: str
    flops_per_s: float
    memory_bytes: int
    up_bytes_per_s: float
    down_bytes_per_s: float
    host: str | None = None
    device: str = "cpu"
    address: str | None = None
    region: str | None = None
    mtbf_s: float | None = None
    hours: int = ALL_DAY
    """When it is there: bit h is set for the hour from h to h + 1, UTC (constraints.py)."""
    data: NodeData | None = None
    process_bytes: int | None = None
    """What a stage's process takes of this memory before it holds a tensor, where it was measured; None: the usual."""
    host_memory_bytes: int | None = None
    """Of a GPU: what its stage's process may hold of the machine's own memory; None: nobody counts it."""

    def __post_init__(self) -> None:
        _require_positive(self, "flops_per_s", "memory_bytes", "up_bytes_per_s", "down_bytes_per_s")
        if not 0 < self.hours <= ALL_DAY:
            raise InvalidInput("must name at least one of 24 hours", key=f"{self.name}.hours")
        optional = ("mtbf_s", "process_bytes", "host_memory_bytes")
        _require_positive(self, *(name for name in optional if getattr(self, name) is not None))

    @property
    def beyond_bytes(self) -> int:
        """Return what a stage's process takes of this memory beyond PROCESS_BYTES, which the needs of stages hold."""
        usual = CUDA_PROCESS_BYTES if self.device.startswith("cuda") else PROCESS_BYTES
        return max(0, (self.process_bytes or usual) - PROCESS_BYTES)

    @cached_property
    def room_bytes(self) -> int:
        """Return the memory that a stage finds whose needs hold PROCESS_BYTES for its process."""
        return max(0, self.memory_bytes - self.beyond_bytes)

    @cached_property
    def host_room_bytes(self) -> float:
        """Return the machine's own memory that a stage on a GPU finds beside its process; endless if not counted."""
        return math.inf if self.host_memory_bytes is None else max(0, self.host_memory_bytes - CUDA_HOST_BYTES)


@dataclass(frozen=True)
class Fleet:
    """All nodes and what is known of their links. Raises `InvalidInput` where these contradict each other."""

    nodes: tuple[Node, ...]
    links: tuple[Link, ...] = ()
    regions: tuple[RegionLink, ...] = ()
    constraints: Constraints = UNCONSTRAINED
    flops_per_byte: float = 0.0
    """How many FLOPs take as long as moving a byte in memory (ModelCosts.with_traffic), measured over all nodes."""

    def __post_init__(self) -> None:
        _check(self)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes)

    @cached_property
    def arrays(self) -> "FleetArrays":
        """Return the nodes and their links as arrays, in the order of `nodes`."""
        return FleetArrays(self)

    @cached_property
    def rules(self) -> GroupingRules:
        """Return what any group of nodes must keep to."""
        return GroupingRules(
            self.names,
            [node.region for node in self.nodes],
            [node.hours for node in self.nodes],
            self.constraints,
            [node.mtbf_s for node in self.nodes],
        )

    def node(self, name: str) -> Node:
        """Return the node of that name. Raises `InvalidInput` for a name nobody has."""
        try:
            return self._node_of[name]
        except KeyError:
            raise InvalidInput(f"no node is named {name!r}{did_you_mean(name, self.names)}") from None

    def link(self, a: str, b: str) -> Link:
        """Return what joins two different nodes: measured, else of one host, else by region, else estimated, else
        default.
        """
        key = _pair(a, b)
        if key not in self._known_links:
            self._known_links[key] = self._link(*key)
        return self._known_links[key]

    def knows(self, a: str, b: str) -> bool:
        """Say whether anything tells of the link between two different nodes; else it is the stated default."""
        regions = self.node(a).region, self.node(b).region
        by_region = None not in regions and _pair(*map(str, regions)) in self._by_region
        return by_region or self.same_host(a, b) or b in self._estimates_from(a)

    def same_host(self, a: str, b: str) -> bool:
        """Say whether the two nodes share a host, so that what passes between them leaves no uplink."""
        first, second = self.node(a), self.node(b)
        return first.host is not None and first.host == second.host

    def flow_bytes_per_s(self, sender: str, receiver: str) -> float:
        """Return the most that one flow can carry: min(sender's uplink, receiver's downlink, link)."""
        key = (sender, receiver)
        if key not in self._known_flows:
            rate = self.link(sender, receiver).bytes_per_s
            if not self.same_host(sender, receiver):
                rate = min(rate, self.node(sender).up_bytes_per_s, self.node(receiver).down_bytes_per_s)
            self._known_flows[key] = rate
        return self._known_flows[key]

    def _link(self, a: str, b: str) -> Link:
        first, second = self.node(a), self.node(b)
        if a == b:
            raise InvalidInput(f"a node has no link to itself: {a!r}")
        key = (a, b)
        if key in self._measured:
            return self._measured[key]
        if self.same_host(a, b):
            return Link(*key, HOST_LATENCY_S, HOST_BYTES_PER_S)
        if first.region is not None and second.region is not None:
            pair = self._by_region.get(_pair(first.region, second.region))
            if pair is not None:
                return Link(*key, pair.latency_s, pair.bytes_per_s, pair.jitter_s)
        if (known := self._estimates_from(a).get(b)) is not None:
            return Link(*key, *known)
        near = first.region is not None and first.region == second.region
        unlimited = max(first.up_bytes_per_s, first.down_bytes_per_s, second.up_bytes_per_s, second.down_bytes_per_s)
        return Link(*key, DEFAULT_REGION_LATENCY_S if near else DEFAULT_LATENCY_S, unlimited)

    @cached_property
    def _node_of(self) -> Mapping[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def _measured(self) -> Mapping[tuple[str, str], Link]:
        return {_pair(link.a, link.b): link for link in self.links}

    @cached_property
    def _known_links(self) -> dict[tuple[str, str], Link]:
        return {}

    @cached_property
    def _known_flows(self) -> dict[tuple[str, str], float]:
        return {}

    @cached_property
    def _by_region(self) -> Mapping[tuple[str, str], RegionLink]:
        return {_pair(link.a, link.b): link for link in self.regions}

    @cached_property
    def _graph(self) -> Graph:
        return latency_graph({node.name: node.region for node in self.nodes}, _edges(self.links), _edges(self.regions))

    @cached_property
    def _estimates(self) -> dict[str, dict[str, tuple[float, float]]]:
        return {}

    def _estimates_from(self, source: str) -> Mapping[str, tuple[float, float]]:
        if source not in self._estimates:
            self._estimates[source] = shortest_from(self._graph, source)
        return self._estimates[source]


def _pair(a: str, b: str) -> tuple[str, str]:
    return (a, b) if a <= b else (b, a)


def _edges(links: Iterable[Link | RegionLink]) -> list[Edge]:
    return [(link.a, link.b, link.latency_s, link.bytes_per_s) for link in links]


def _require_positive(node: Node, *fields: str) -> None:
    for name in fields:
        value = getattr(node, name)
        if not (math.isfinite(value) and value > 0):
            raise InvalidInput(f"must be a finite number above 0, not {value!r}", key=f"{node.name}.{name}")


def require_node_name(name: str, *, key: str) -> None:
    """Raises InvalidInput where no node can be called so. `key`: what the user has named it with."""
    if NODE_NAME.fullmatch(name) is None:
        raise InvalidInput(
            "must be a letter or digit, followed by at most 63 letters, digits, spaces and any of . _ : @ + -"
            f" ({name[:80]!r} is not)",
            key=key,
        )


def _check(fleet: Fleet) -> None:
    if not fleet.nodes:
        raise InvalidInput("at least one node is needed", key="nodes")
    index_of: dict[str, int] = {}
    for i, node in enumerate(fleet.nodes):
        require_node_name(node.name, key=f"nodes[{i}].name")
        if node.name in index_of:
            raise InvalidInput(
                f"{node.name!r} is already the name of nodes[{index_of[node.name]}]; names must be unique",
                key=f"nodes[{i}].name",
            )
        index_of[node.name] = i
        if node.host_memory_bytes is not None and node.device == "cpu":
            raise InvalidInput("is for GPUs: state memory_gb alone", key=f"nodes[{i}].host_memory_gb")
    _check_hosts(fleet)
    regions = sorted({node.region for node in fleet.nodes if node.region is not None})
    _check_pairs("links", fleet.links, list(fleet.names), "node")
    _check_pairs("regions", fleet.regions, regions, "region")
    for i, link in enumerate(fleet.links):
        if link.a == link.b:
            raise InvalidInput(f"joins {link.a!r} to itself", key=f"links[{i}].between")
    fleet.constraints.check({node.name: node.region for node in fleet.nodes})
    hours_of: dict[str, int] = {}
    for i, pin in enumerate(fleet.constraints.pins):
        if pin.cluster is not None:
            hours_of[pin.cluster] = hours_of.get(pin.cluster, ALL_DAY) & fleet.nodes[index_of[pin.node]].hours
            if not hours_of[pin.cluster]:
                raise InvalidInput(
                    f"the nodes pinned to {pin.cluster!r} are never all there at the same time",
                    key=f"constraints.pin[{i}].cluster",
                )


def _check_hosts(fleet: Fleet) -> None:
    first_of: dict[str, tuple[int, Node]] = {}
    for i, node in enumerate(fleet.nodes):
        if node.host is None:
            continue
        j, first = first_of.setdefault(node.host, (i, node))
        if (node.up_bytes_per_s, node.down_bytes_per_s) != (first.up_bytes_per_s, first.down_bytes_per_s):
            raise InvalidInput(
                f"nodes[{j}] and nodes[{i}] are both on {node.host!r} and share its uplink and downlink: "
                "state the same rates for both",
                key=f"nodes[{i}].host",
            )


def _check_pairs(section: str, links: Iterable[Link | RegionLink], known: list[str], kind: str) -> None:
    seen: dict[tuple[str, str], int] = {}
    names = frozenset(known)
    for i, link in enumerate(links):
        for end in (link.a, link.b):
            if end not in names:
                raise InvalidInput(
                    f"no {kind} is named {end!r}{did_you_mean(end, known)}", key=f"{section}[{i}].between"
                )
        key = _pair(link.a, link.b)
        if key in seen:
            raise InvalidInput(
                f"{link.a!r} and {link.b!r} are already joined by {section}[{seen[key]}]; "
                "a pair has no direction and is given once",
                key=f"{section}[{i}].between",
            )
        seen[key] = i


class FleetArrays:
    """Row i of every array is `fleet.nodes[i]`."""

    def __init__(self, fleet: Fleet) -> None:
        nodes = fleet.nodes
        self._fleet = fleet
        self.number_of = {node.name: i for i, node in enumerate(nodes)}
        self.flops_per_s = np.array([node.flops_per_s for node in nodes])
        self.room_bytes = np.array([node.room_bytes for node in nodes], dtype=np.float64)
        self.host_room_bytes = np.array([node.host_room_bytes for node in nodes], dtype=np.float64)
        self.up_bytes_per_s = np.array([node.up_bytes_per_s for node in nodes])
        self.down_bytes_per_s = np.array([node.down_bytes_per_s for node in nodes])
        self.host = _numbered([node.host for node in nodes])
        """Which nodes share an uplink: equal numbers; −1 for a node by itself."""
        self._region = _numbered([node.region for node in nodes])
        self._latency, self._rate = self._by_region()
        linked = {name for link in fleet.links for name in (link.a, link.b)}
        joined = {region for link in fleet.regions for region in (link.a, link.b)}
        self._linked = np.array([node.name in linked for node in nodes])
        self._known = self._linked | np.array([node.region in joined for node in nodes])

    def between(self, rows: Numbers, columns: Numbers) -> tuple[Floats, Floats]:
        """Return (one-way latency, the most that one flow from row to column carries), shapes (rows, columns). A node
        reaches itself at once.
        """
        rows, columns = np.asarray(rows, dtype=np.int64), np.asarray(columns, dtype=np.int64)
        if len(self.host) > DENSE_NODES:
            return self._between(rows, columns)
        latency, flow = self._all
        at = np.ix_(rows, columns)
        return latency[at], flow[at]

    @cached_property
    def _all(self) -> tuple[Floats, Floats]:
        everyone = np.arange(len(self.host))
        return self._between(everyone, everyone)

    def _between(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> tuple[Floats, Floats]:
        at = np.ix_(self._region[rows], self._region[columns])
        latency, rate = self._latency[at], self._rate[at]
        mates = (self.host[rows][:, None] == self.host[columns]) & (self.host[rows] >= 0)[:, None]
        latency[mates], rate[mates] = HOST_LATENCY_S, HOST_BYTES_PER_S
        measured = self._linked[rows][:, None] & self._linked[columns]
        ends = self._known[rows][:, None] & self._known[columns]
        near = (self._region[rows][:, None] == self._region[columns]) & (self._region[rows] >= 0)[:, None]
        unknown = np.isnan(latency)
        default = np.where(near, DEFAULT_REGION_LATENCY_S, DEFAULT_LATENCY_S)
        latency, rate = np.where(unknown, default, latency), np.where(unknown, np.inf, rate)
        for i, j in np.argwhere(measured | (unknown & ends)).tolist():
            if rows[i] != columns[j]:
                link = self._fleet.link(self._fleet.nodes[rows[i]].name, self._fleet.nodes[columns[j]].name)
                latency[i, j], rate[i, j] = link.latency_s, link.bytes_per_s
        ways = np.minimum(self.up_bytes_per_s[rows][:, None], self.down_bytes_per_s[columns])
        flow = np.where(mates, rate, np.minimum(rate, ways))
        same = rows[:, None] == columns
        return np.where(same, 0.0, latency), np.where(same, np.inf, flow)

    def _by_region(self) -> tuple[Floats, Floats]:
        """[region, region] of what pairs of regions state; NaN where they do not. The last row is for no region."""
        number_of = {node.region: number for node, number in zip(self._fleet.nodes, self._region, strict=True)}
        count = max(number_of.values()) + 2
        latency, rate = np.full((count, count), np.nan), np.full((count, count), np.nan)
        for link in self._fleet.regions:
            for a, b in ((link.a, link.b), (link.b, link.a)):
                latency[number_of[a], number_of[b]] = link.latency_s
                rate[number_of[a], number_of[b]] = link.bytes_per_s
        return latency, rate


def _numbered(words: Sequence[str | None]) -> NDArray[np.int64]:
    numbers: dict[str | None, int] = {None: -1}
    return np.array([numbers.setdefault(word, len(numbers) - 1) for word in words])
