"""What one round of one ring sends from whom to whom in a fleet, and how long it takes where nothing else is sent.

In: a fleet, the nodes of a ring's members in passing order, and the length of the vector. Out: an `Exchange`. Who
exchanges directly, the chunk size, the shares and the time around the ring are those of `ring_timing`, by which a run
and the simulator divide vectors, too; `links_of_ring` gives all three the same rates and latencies.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.spans import Floats
from ring_timing import RingLinks, divide, ring_round

PARAMETER_BYTES = 4
"""Bytes of one averaged number before it takes its form on the wire: averaging is in float32."""


@dataclass(frozen=True)
class Exchange:
    """One round of one ring."""

    flows: tuple[tuple[str, str, float], ...]
    """(sender, receiver, bytes) of each pair of nodes that exchange anything."""
    slowest: str
    """The node that sends for the longest time."""
    sending_s: float
    """For how long that node sends."""
    last_hop_s: float
    """How much later the last of it has arrived: the longest latency."""
    way_s: float
    """How long a chunk that waits for nobody travels around the ring, as often as it goes; 0 in a direct exchange."""


def links_of_ring(fleet: Fleet, nodes: Sequence[str]) -> RingLinks:
    """Rates and latencies between `nodes`, in passing order. Several members may be on one node: it reaches itself at
    once. Whether they exchange directly is judged by all pairs, since a direct exchange would use them all.
    """
    return _links(*_pairs(fleet, nodes))


def exchange_of(fleet: Fleet, nodes: Sequence[str], elements: int, element_bytes: float) -> Exchange:
    """The round in which two nodes or more, in passing order, average `elements` numbers of `element_bytes` each."""
    latency_s, rates = _pairs(fleet, nodes)
    links, vector_bytes = _links(latency_s, rates), int(elements * element_bytes)
    division = divide(elements, element_bytes, links)
    if division.direct:
        flows = tuple((a, b, float(vector_bytes)) for a, b in permutations(nodes, 2))
        slowest = nodes[int(rates.min(axis=1).argmin())]
        return Exchange(flows, slowest, vector_bytes / float(rates.min()), float(latency_s.max()), 0.0)
    hops, chunk_bytes = (links.hop_bytes_per_s, links.hop_latency_s), division.chunk_elements * element_bytes
    once = ring_round(vector_bytes, chunk_bytes, division.shares, *hops)
    flows = tuple(zip(nodes, [*nodes[1:], nodes[0]], once.hop_bytes, strict=True))
    slowest = nodes[max(range(len(nodes)), key=once.hop_s.__getitem__)]
    return Exchange(flows, slowest, once.sending_s, max(links.hop_latency_s), once.way_s)


def _pairs(fleet: Fleet, nodes: Sequence[str]) -> tuple[Floats, Floats]:
    """(one-way latency, bytes/s of one flow) from each node to each, shapes (nodes, nodes)."""
    numbers = [fleet.arrays.number_of[name] for name in nodes]
    return fleet.arrays.between(numbers, numbers)


def _links(latency_s: Floats, rates: Floats) -> RingLinks:
    count = len(rates)
    if count < 2:
        return RingLinks()
    hops = np.arange(count), np.roll(np.arange(count), -1)
    ways = tuple(rates[hops].tolist()), tuple(latency_s[hops].tolist())
    return RingLinks(*ways, float(rates.min()), float(latency_s.max()))
