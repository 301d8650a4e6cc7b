"""From a plan's links to the rings of one segment: chunks, and how the vector is divided. Pure.

Decides what every member of a ring has to be told alike, once, by whoever launches the run: two machines could come to
different numbers.
"""

from itertools import pairwise

from cluster_planner import Plan, Ring
from ravnest.runtime.messages import stage_name
from ring_allreduce import RingSpec, chunk_elements_for

_FLOAT_BYTES = 4


def progress_ring(plan: Plan, ring: Ring, elements: int) -> RingSpec:
    """The ring that averages a segment's progress, `elements` float32 numbers."""
    return RingSpec(str(plan.rings.index(ring)), _members(ring), elements, _chunk_elements(plan, ring))


def buffers_ring(plan: Plan, ring: Ring, elements: int) -> RingSpec:
    """The ring that averages a segment's buffers: as they are, since a variance that was rounded beside larger numbers
    may come out below zero."""
    return RingSpec(f"{plan.rings.index(ring)}.buffers", _members(ring), elements, _chunk_elements(plan, ring))


def hop_rates(plan: Plan, ring: Ring) -> tuple[float, ...]:
    """Bytes/s from each member to the next, of a flow that has the links to itself; none in a ring of one."""
    nodes = [plan.cluster(cluster).stages[index].node for cluster, index in ring.members]
    hops = pairwise([*nodes, nodes[0]]) if len(nodes) > 1 else ()
    return tuple(plan.fleet.flow_bytes_per_s(sender, receiver) for sender, receiver in hops)


def _members(ring: Ring) -> tuple[str, ...]:
    return tuple(stage_name(*member) for member in ring.members)


def _chunk_elements(plan: Plan, ring: Ring) -> int:
    return chunk_elements_for(min(hop_rates(plan, ring), default=None), _FLOAT_BYTES)
