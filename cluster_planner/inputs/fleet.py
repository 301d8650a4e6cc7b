"""The machines and what joins them.

Decides what the link between any two nodes is taken to be, in this order: measured; two nodes of one host;
the pair of their regions; an estimate from the shortest path over what is known; a stated default. Knows no
model and no file. Nodes of one host share its uplink and its downlink, and reach each other without either.
All values are SI: seconds, bytes, FLOP/s.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from cluster_planner.errors import InvalidInput
from cluster_planner.inputs.constraints import UNCONSTRAINED, Constraints, did_you_mean
from cluster_planner.inputs.grouping_rules import Rules
from cluster_planner.inputs.hours import ALL_DAY
from cluster_planner.inputs.links import Edge, Graph, latency_graph, shortest_from

if TYPE_CHECKING:
    from cluster_planner.inputs.fleet_arrays import Sites

DEFAULT_LATENCY_S = 0.05
"""One-way latency of a pair of which nothing is known. The link then limits no flow: only the two nodes do.
"""

DEFAULT_REGION_LATENCY_S = 0.005
"""The same for two nodes of one region."""

HOST_LATENCY_S = 5e-5
HOST_BYTES_PER_S = 2e9
"""What joins two nodes of one host where nobody measured it."""


@dataclass(frozen=True)
class NodeData:
    """Where a node finds the job's data, if not where the job says."""

    factory: str | None = None
    """In place of the job's data factory; None: the same one."""

    args: Mapping[str, object] = field(default_factory=dict, hash=False)
    """Of that factory, or, of the job's own, those that replace the job's."""


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
    """When it is there: bit h is set for the hour from h to h + 1, UTC (hours.py)."""
    data: NodeData | None = None

    def __post_init__(self) -> None:
        _require_positive(self, "flops_per_s", "memory_bytes", "up_bytes_per_s", "down_bytes_per_s")
        if self.mtbf_s is not None:
            _require_positive(self, "mtbf_s")
        if not 0 < self.hours <= ALL_DAY:
            raise InvalidInput("must name at least one of 24 hours", key=f"{self.name}.hours")


@dataclass(frozen=True)
class Link:
    """An unordered pair of nodes: one-way latency and rate, and by how much longer a message takes now and then."""

    a: str
    b: str
    latency_s: float
    bytes_per_s: float
    jitter_s: float = 0.0
    """A message takes up to so much more than `latency_s`, evenly. No prediction counts it."""

    def __post_init__(self) -> None:
        _require_sound_link(self)


@dataclass(frozen=True)
class RegionLink:
    """An unordered pair of regions, or one region twice: what joins nodes of which no pair was measured."""

    a: str
    b: str
    latency_s: float
    bytes_per_s: float
    jitter_s: float = 0.0

    def __post_init__(self) -> None:
        _require_sound_link(self)


@dataclass(frozen=True)
class Fleet:
    """All nodes and what is known of their links. Raises `InvalidInput` where these contradict each other."""

    nodes: tuple[Node, ...]
    links: tuple[Link, ...] = ()
    regions: tuple[RegionLink, ...] = ()
    constraints: Constraints = UNCONSTRAINED

    def __post_init__(self) -> None:
        _check(self)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes)

    @cached_property
    def sites(self) -> "Sites":
        """The nodes and their links as arrays, in the order of `nodes`."""
        from cluster_planner.inputs.fleet_arrays import Sites  # here: it knows this module

        return Sites(self)

    @cached_property
    def rules(self) -> Rules:
        """What any group of nodes must keep to."""
        return Rules(self)

    def node(self, name: str) -> Node:
        """The node of that name. Raises `InvalidInput` for a name nobody has."""
        try:
            return self._node_of[name]
        except KeyError:
            raise InvalidInput(f"no node is named {name!r}{did_you_mean(name, self.names)}") from None

    def link(self, a: str, b: str) -> Link:
        """What joins two different nodes: measured, else of one host, else by region, else estimated, else
        default.
        """
        key = _pair(a, b)
        if key not in self._known_links:
            self._known_links[key] = self._link(*key)
        return self._known_links[key]

    def knows(self, a: str, b: str) -> bool:
        """Whether anything tells of the link between two different nodes; else it is the stated default."""
        regions = self.node(a).region, self.node(b).region
        by_region = None not in regions and _pair(*map(str, regions)) in self._by_region
        return by_region or self.same_host(a, b) or b in self._estimates_from(a)

    def same_host(self, a: str, b: str) -> bool:
        """Whether the two nodes share a host, so that what passes between them leaves no uplink."""
        first, second = self.node(a), self.node(b)
        return first.host is not None and first.host == second.host

    def flow_bytes_per_s(self, sender: str, receiver: str) -> float:
        """The most that one flow can carry: min(sender's uplink, receiver's downlink, link)."""
        rate = self.link(sender, receiver).bytes_per_s
        if self.same_host(sender, receiver):
            return rate
        return min(rate, self.node(sender).up_bytes_per_s, self.node(receiver).down_bytes_per_s)

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


def _require_sound_link(link: Link | RegionLink) -> None:
    where = f"{link.a}–{link.b}"
    for key, value in (("latency_s", link.latency_s), ("jitter_s", link.jitter_s)):
        if not (math.isfinite(value) and value >= 0):
            raise InvalidInput(f"must be a finite number, 0 or more, not {value!r}", key=f"{where}.{key}")
    if not (math.isfinite(link.bytes_per_s) and link.bytes_per_s > 0):
        raise InvalidInput(f"must be a finite number above 0, not {link.bytes_per_s!r}", key=f"{where}.bytes_per_s")


def _check(fleet: Fleet) -> None:
    if not fleet.nodes:
        raise InvalidInput("at least one node is needed", key="nodes")
    index_of: dict[str, int] = {}
    for i, node in enumerate(fleet.nodes):
        if not node.name:
            raise InvalidInput("must not be empty", key=f"nodes[{i}].name")
        if node.name in index_of:
            raise InvalidInput(
                f"{node.name!r} is already the name of nodes[{index_of[node.name]}]; names must be unique",
                key=f"nodes[{i}].name",
            )
        index_of[node.name] = i
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
