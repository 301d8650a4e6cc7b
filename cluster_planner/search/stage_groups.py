"""Starts the other way round: stages, not clusters, are groups of neighbours, and pipelines run across them.

Where averaging costs more than activations (few samples a round, large models, slow links between sites), rings should
stay within a site and pipelines cross between sites, as in DT-FM (Yuan et al. 2022), whose two levels these are:
nodes are divided into stage groups of neighbours, one node for each cluster; then groups are put in the order of a tour
with short hops, and nodes of one group are matched with those of the next.

    sites         the regions of nodes.yaml, and k-means on the latency coordinates for several numbers of sites
    stage groups  for C clusters, each site of n nodes gives n // C groups of C; the rest of all sites, along the tour,
                  gives more of them, or is left out
    order         sites along a tour whose dearest hop is cheapest, opened at that hop
    matching      nodes of equal rank by speed, either spread over a site's groups or next to each other

Cuts are the same in all clusters then (pipeline/common_cuts.py), so that a ring joins one stage of each. In: a fleet,
points and costs. Out: the nodes of each cluster, in order.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.spans import Floats, SpanCosts
from cluster_planner.rings import best_path
from cluster_planner.search.estimates import Group
from cluster_planner.search.starting_groups import LATENCY_DIMENSIONS, group_nodes

SITES = (1, 2, 3, 4, 6, 8, 10, 12)
"""The numbers of sites that are tried."""

Orders = tuple[tuple[int, ...], ...]
"""The nodes of each cluster, in the order of its stages; all have equally many."""


def orders_across(
    fleet: Fleet, spans: SpanCosts, points: Floats, nodes: Group, clusters: Sequence[int], seed: int
) -> Iterator[Orders]:
    """Yield orders for these numbers of clusters and for all SITES, each once.

    `points`: coordinates of every node of the fleet, latency first. `nodes`: those that may run a stage.
    """
    seen: set[Orders] = set()
    for sites in _sites(fleet, points, nodes, seed):
        tour = _open_tour(fleet, sites, spans.sent_bytes)
        for count in clusters:
            for orders in _dealt(fleet, [sites[i] for i in tour], count):
                if orders not in seen:
                    seen.add(orders)
                    yield orders


def _sites(fleet: Fleet, points: Floats, nodes: Group, seed: int) -> Iterator[list[Group]]:
    """Yield divisions of the nodes into sites: by what nodes.yaml calls a region, and by k-means on latencies."""
    by_region: dict[str | None, list[int]] = {}
    for node in nodes:
        by_region.setdefault(fleet.nodes[node].region, []).append(node)
    divisions = [tuple(tuple(group) for group in by_region.values())]
    places = points[list(nodes), :LATENCY_DIMENSIONS]
    apart = len(np.unique(places, axis=0))
    for count in SITES:
        found = group_nodes(places, count, seed, lambda group: len(group) > 0) if count <= apart else None
        divisions += [] if found is None else [tuple(tuple(nodes[i] for i in group) for group in found)]
    for division in dict.fromkeys(tuple(sorted(each)) for each in divisions):
        yield list(division)


def _open_tour(fleet: Fleet, sites: Sequence[Group], sent_bytes: float) -> tuple[int, ...]:
    """Return the order of the sites in which the dearest hop of a micro-batch is cheapest."""
    hops: list[list[float]] = []
    for a in sites:
        ways = [fleet.arrays.between(a, b) for b in sites]
        hops.append([float((latency + sent_bytes / rate).mean()) for latency, rate in ways])
    return best_path(hops)


def _dealt(fleet: Fleet, sites: Sequence[Group], clusters: int) -> Iterator[Orders]:
    """Yield ways to give each of so many clusters as many nodes of each site, in the order of the sites."""
    speed = fleet.arrays.flops_per_s
    spread: list[Group] = []
    beside: list[Group] = []
    rest: list[int] = []
    for site in sites:
        ranked = sorted(site, key=lambda i: (-speed[i], i))
        stages = len(ranked) // clusters
        used, left = ranked[: stages * clusters], ranked[stages * clusters :]
        rest += left
        spread += [tuple(used[at * clusters : (at + 1) * clusters]) for at in range(stages)]
        beside += [tuple(used[at::stages]) for at in range(stages)]
        if len(rest) >= clusters:  # a group of several sites, where the tour leaves the last of them
            mixed = tuple(sorted(rest[:clusters], key=lambda i: (-speed[i], i)))
            rest = rest[clusters:]
            spread.append(mixed)
            beside.append(mixed)
    unequal = any(speed[site[0]] != speed[i] for site in sites for i in site)  # else both ways are the same plan
    for groups in dict.fromkeys((tuple(spread), tuple(beside)) if unequal else (tuple(spread),)):
        if groups:
            yield tuple(zip(*groups, strict=True))
