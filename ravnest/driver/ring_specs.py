"""From a plan's links to the rings of one segment: chunks, how the vector is divided, when it goes direct. Pure.

Decides what every member of a ring has to be told alike, once, by whoever launches the run: two machines could come to
different numbers.
"""

from collections.abc import Sequence
from itertools import combinations, pairwise, permutations

from cluster_planner import Plan, Ring
from cluster_planner.predict.ring_traffic import Member
from ravnest.pipeline import stage_name
from ring_allreduce import RingSpec
from ring_timing.layout import chunk_elements_for, direct_is_faster
from ring_timing.shares import shares_that_pay
from ring_allreduce.ring.wire_forms import BLOCK, Wire, bytes_per_element


def progress_ring(plan: Plan, ring: Ring, elements: int, wire: Wire) -> RingSpec:
    """The ring that averages a segment's progress, `elements` float32 numbers."""
    return ring_spec(plan, ring.members, str(plan.rings.index(ring)), elements, wire)


def buffers_ring(plan: Plan, ring: Ring, elements: int) -> RingSpec:
    """The ring that averages a segment's buffers: as they are, since a variance that was rounded beside larger numbers
    may come out below zero."""
    return ring_spec(plan, ring.members, f"{plan.rings.index(ring)}.buffers", elements, "exact")


def hop_rates(plan: Plan, members: Sequence[Member]) -> tuple[float, ...]:
    """Bytes/s from each member to the next, of a flow that has the links to itself; none in a ring of one."""
    nodes = _nodes(plan, members)
    hops = pairwise([*nodes, nodes[0]]) if len(nodes) > 1 else ()
    return tuple(plan.fleet.flow_bytes_per_s(sender, receiver) for sender, receiver in hops)


def ring_spec(plan: Plan, members: Sequence[Member], name: str, elements: int, wire: Wire) -> RingSpec:
    """The ring in which `members` average `elements` float32 numbers."""
    rates, vector_bytes = hop_rates(plan, members), int(elements * bytes_per_element(wire))
    slowest = min(rates, default=None)
    # Without the scales: a chunk of int8 is cut to whole blocks below.
    chunk_elements = chunk_elements_for(slowest, int(bytes_per_element(wire)), vector_bytes)
    if wire == "int8":  # numbers that share a scale do not part at the end of a chunk
        chunk_elements = chunk_elements // BLOCK * BLOCK
    # Whether in a ring or directly is judged by the pairs that direct exchange would use: all of them.
    direct = direct_is_faster(
        vector_bytes, len(members), _longest_latency_s(plan, members), _slowest_pair_bytes_per_s(plan, members)
    )
    names = tuple(stage_name(*member) for member in members)
    shares = None
    if rates and not direct:
        chunk_bytes = chunk_elements * bytes_per_element(wire)
        shares = shares_that_pay(vector_bytes, chunk_bytes, rates, _hop_latencies_s(plan, members))
    return RingSpec(name, names, elements, chunk_elements, wire=wire, shares=shares, direct=direct)


def _hop_latencies_s(plan: Plan, members: Sequence[Member]) -> list[float]:
    nodes = _nodes(plan, members)
    return [plan.fleet.link(sender, receiver).latency_s for sender, receiver in pairwise([*nodes, nodes[0]])]


def _longest_latency_s(plan: Plan, members: Sequence[Member]) -> float | None:
    pairs = combinations(_nodes(plan, members), 2)
    return max((plan.fleet.link(a, b).latency_s for a, b in pairs), default=None)


def _slowest_pair_bytes_per_s(plan: Plan, members: Sequence[Member]) -> float | None:
    pairs = permutations(_nodes(plan, members), 2)
    return min((plan.fleet.flow_bytes_per_s(a, b) for a, b in pairs), default=None)


def _nodes(plan: Plan, members: Sequence[Member]) -> list[str]:
    return [plan.cluster(cluster).stages[index].node for cluster, index in members]
