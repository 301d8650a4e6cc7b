"""Starts in which clusters are arcs of one tour through all nodes: neighbours, and equally much memory in each.

k-means gives groups of very unequal sizes. Where memory is tight, a model fits into a cluster of some sizes far better
than into others: units are whole, so 21 nodes may hold three units each where 18 would need four, or a smaller window.
Then k groups of the same size are worth much more, though a few of their nodes are not neighbours.

In: a fleet, and the bytes that a micro-batch sends. Out: k groups.
"""

import numpy as np

from cluster_planner.inputs.fleet import Fleet
from cluster_planner.rings import best_path
from cluster_planner.search.estimates import Group


def open_tour(fleet: Fleet, nodes: Group, sent_bytes: float) -> Group:
    """Return the nodes in an order in which the dearest hop of `sent_bytes` is cheap."""
    latency_s, bytes_per_s = fleet.arrays.between(nodes, nodes)
    hops = latency_s + sent_bytes / bytes_per_s
    np.fill_diagonal(hops, 0.0)
    return tuple(nodes[i] for i in best_path(hops.tolist()))


def arcs_of(fleet: Fleet, tour: Group, k: int) -> tuple[Group, ...]:
    """Return the tour in k parts of as equal memory as its order allows, sorted as k-means groups are. Each part has
    a node where there are k.
    """
    memory = np.cumsum([fleet.nodes[i].room_bytes for i in tour], dtype=float)
    ends = [int(np.abs(memory - memory[-1] * part / k).argmin()) + 1 for part in range(1, k)]
    for i in range(len(ends)):
        ends[i] = min(max(ends[i], ends[i - 1] + 1 if i else 1), len(tour) - (k - 1 - i))
    bounds = zip((0, *ends), (*ends, len(tour)), strict=True)
    return tuple(sorted(tuple(sorted(tour[start:end])) for start, end in bounds))
