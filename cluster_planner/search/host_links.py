"""What groups of nodes have of the links that they share with other nodes of their hosts.

Decides equal parts: a group has of a host's uplink and downlink as much as it has of the host's nodes, whoever runs the
others. That is what the prediction comes to when clusters that share a host are about as fast. Groups are given by node
numbers, one in each column; NOBODY fills those of fewer nodes. Knows no pipeline.
"""

import numpy as np
from numpy.typing import NDArray

from cluster_planner.inputs.fleet_arrays import Sites
from cluster_planner.inputs.spans import Floats

NOBODY = -1


def mates(sites: Sites, at: NDArray[np.int64]) -> NDArray[np.int64]:
    """[node, row]: how many of the group's nodes are on its host, itself among them."""
    hosts = _hosts(sites, at)
    if (hosts < 0).all():
        return np.ones(at.shape, dtype=np.int64)
    return np.where(hosts < 0, 1, (hosts[:, None] == hosts).sum(axis=1))


def shares(sites: Sites, at: NDArray[np.int64], together: NDArray[np.int64]) -> Floats:
    """The part of its host's links that a node has together with its mates. `together`: how many they are, as `mates`
    says, with itself.
    """
    everyone = np.bincount(sites.host[sites.host >= 0], minlength=1)
    hosts = _hosts(sites, at)
    part: Floats = np.where(hosts < 0, 1.0, together / np.maximum(everyone[np.maximum(hosts, 0)], 1))
    return part


def shared_rates(sites: Sites, at: NDArray[np.int64]) -> Floats:
    """[i, j, row]: bytes/s from i to j of the part of their hosts' links that the group has; infinite within a host."""
    hosts, part = _hosts(sites, at), shares(sites, at, mates(sites, at))
    up, down = sites.up_bytes_per_s[at] * part, sites.down_bytes_per_s[at] * part
    apart = (hosts[:, None] != hosts) | (hosts < 0)
    return np.where(apart, np.minimum(up[:, None], down), np.inf)


def _hosts(sites: Sites, at: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.where(at == NOBODY, -1, sites.host[at])
