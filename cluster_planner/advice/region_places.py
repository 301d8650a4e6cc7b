"""Where regions lie on a map on which near is a short latency.

In: a fleet, and regions of it. Out: a place in the unit square for each.
"""

from collections.abc import Sequence

import numpy as np

from cluster_planner.inputs.fleet import Fleet
from cluster_planner.search.starting_groups import classical_scaling


def region_places(fleet: Fleet, regions: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Return a place (x, y) from 0 to 1 for each of the regions, so that distances are as the one-way latencies between
    their nodes, as far as a plane allows (classical multidimensional scaling). One region lies in the middle.

    Raises KeyError for a region without a node.
    """
    node_in = {node.region: node.name for node in reversed(fleet.nodes)}
    names = [node_in[region] for region in regions]
    latencies = [[0.0 if a == b else fleet.link(a, b).latency_s for b in names] for a in names]
    if not names:
        return {}
    points = classical_scaling(np.array(latencies), 2)
    extent = np.ptp(points, axis=0)
    span = max(float(extent.max()), 1e-12)
    low = points.min(axis=0) - (span - extent) / 2
    return {region: (float(x), float(y)) for region, (x, y) in zip(regions, (points - low) / span, strict=True)}
