"""Links between nodes and between regions, and estimates for pairs of nodes that nobody measured.

An estimate is the shortest path by latency over the known links: the sum of its latencies, and the rate of its slowest
link. Peers do not relay for each other, so this is an estimate and never a route. In the graph a region is an exit and
an entrance, so that n nodes in r regions take 2n + r² edges instead of n².
"""

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from cluster_planner.errors import InvalidInput

if TYPE_CHECKING:
    import networkx as nx

DEFAULT_LATENCY_S = 0.05
"""One-way latency of a pair of which nothing is known. The link then limits no flow: only the two nodes do.
"""

DEFAULT_REGION_LATENCY_S = 0.005
"""One-way latency of two nodes of one region of which nothing else is known."""

HOST_LATENCY_S = 5e-5

HOST_BYTES_PER_S = 2e9
"""The link of two nodes of one host where nobody measured it."""


Edge: TypeAlias = tuple[str, str, float, float]
"""Two names, the one-way latency in seconds, the rate in bytes per second."""

Vertex: TypeAlias = tuple[str, str]
"""("node", name), ("exit", region) or ("entrance", region)."""

Graph: TypeAlias = "nx.DiGraph[Vertex]"


def latency_graph(region_of: Mapping[str, str | None], links: Iterable[Edge], regions: Iterable[Edge]) -> Graph:
    """Return the graph of all that is known: measured links, and links between (or within) regions."""
    import networkx as nx  # here: stages read plans and never measure a path, and it is 370 modules

    graph: Graph = nx.DiGraph()
    for name, region in region_of.items():
        graph.add_node(("node", name))
        if region is not None:
            graph.add_edge(("node", name), ("exit", region), latency_s=0.0, bytes_per_s=math.inf)
            graph.add_edge(("entrance", region), ("node", name), latency_s=0.0, bytes_per_s=math.inf)
    for a, b, latency_s, rate in regions:
        graph.add_edge(("exit", a), ("entrance", b), latency_s=latency_s, bytes_per_s=rate)
        graph.add_edge(("exit", b), ("entrance", a), latency_s=latency_s, bytes_per_s=rate)
    for a, b, latency_s, rate in links:
        graph.add_edge(("node", a), ("node", b), latency_s=latency_s, bytes_per_s=rate)
        graph.add_edge(("node", b), ("node", a), latency_s=latency_s, bytes_per_s=rate)
    return graph


def shortest_from(graph: Graph, source: str) -> dict[str, tuple[float, float]]:
    """Return the latency of the shortest path, and the slowest rate on it, for every node that `source` reaches.

    A path of hub edges only (no link at all between the two) cannot arise: an entrance follows only an exit.
    """
    import networkx as nx

    found: dict[str, tuple[float, float]] = {}
    distances: dict[Vertex, float]
    paths: dict[Vertex, list[Vertex]]
    distances, paths = nx.single_source_dijkstra(graph, ("node", source), weight="latency_s")  # type: ignore[assignment]
    for vertex, path in paths.items():
        kind, name = vertex
        if kind == "node" and name != source:
            rate = min(graph.edges[edge]["bytes_per_s"] for edge in itertools.pairwise(path))
            found[name] = (float(distances[vertex]), float(rate))
    return found


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


def _require_sound_link(link: Link | RegionLink) -> None:
    where = f"{link.a}–{link.b}"
    for key, value in (("latency_s", link.latency_s), ("jitter_s", link.jitter_s)):
        if not (math.isfinite(value) and value >= 0):
            raise InvalidInput(f"must be a finite number, 0 or more, not {value!r}", key=f"{where}.{key}")
    if not (math.isfinite(link.bytes_per_s) and link.bytes_per_s > 0):
        raise InvalidInput(f"must be a finite number above 0, not {link.bytes_per_s!r}", key=f"{where}.bytes_per_s")
