"""What groups of nodes have of the links that they share with other nodes of their hosts.

Decides equal parts: a group has of a host's uplink and downlink as much as it has of the host's nodes, whoever runs the
others. That is what the prediction comes to when clusters that share a host are about as fast. Rows are groups of one
size, given by node numbers. Knows no pipeline.
"""

import numpy as np
from numpy.typing import NDArray

from cluster_planner.sites import Sites
from cluster_planner.spans import Floats


def shares(sites: Sites, at: NDArray[np.int64]) -> Floats:
    """[row, node]: the part of its host's links that the row's nodes there have together."""
    everyone = np.bincount(sites.host[sites.host >= 0], minlength=1)
    mine = sites.host[at]
    mates = (mine[:, :, None] == mine[:, None]).sum(axis=2)
    part: Floats = np.where(mine < 0, 1.0, mates / np.maximum(everyone[np.maximum(mine, 0)], 1))
    return part


def shared_hops(sites: Sites, at: NDArray[np.int64], forward: Floats, gradient: Floats) -> Floats:
    """[row, i, j, cut]: seconds that a hop from i to j keeps the part of their hosts' links that the row has; 0 within
    a host, and a single 0 where there are no hosts. `forward` and `gradient`: bytes that cross each cut.
    """
    if not (sites.host >= 0).any():
        return np.zeros(())
    part, hosts = shares(sites, at), sites.host[at]
    up, down = sites.up_bytes_per_s[at] * part, sites.down_bytes_per_s[at] * part
    apart = ((hosts[:, :, None] != hosts[:, None]) | (hosts < 0)[:, None])[..., None]
    out = np.minimum(up[:, :, None], down[:, None])[..., None]
    back = np.minimum(down[:, :, None], up[:, None])[..., None]
    return np.where(apart, np.maximum(forward / out, gradient / back), 0.0)
