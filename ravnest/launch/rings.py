"""From a plan's links to the rings of one segment: chunks, and how the vector is divided. Pure.

Decides what every member of a ring has to be told alike, once, by whoever launches the run: two machines could come to
different numbers.
"""

from itertools import pairwise

from cluster_planner import Plan, Ring
from ravnest.runtime.messages import stage_name
from ring_allreduce import RingSpec, chunk_elements_for
from ring_allreduce.shares import shares_from_hops
from ring_allreduce.wire import BLOCK, Wire

_BYTES_PER_NUMBER: dict[Wire, int] = {"exact": 4, "bfloat16": 2, "float16": 2, "int8": 1}


def progress_ring(plan: Plan, ring: Ring, elements: int, wire: Wire) -> RingSpec:
    """The ring that averages a segment's progress, `elements` float32 numbers."""
    rates = hop_rates(plan, ring)
    return RingSpec(
        str(plan.rings.index(ring)),
        _members(ring),
        elements,
        _chunk_elements(rates, wire),
        wire=wire,
        shares=shares_from_hops(rates) if rates else None,
    )


def buffers_ring(plan: Plan, ring: Ring, elements: int) -> RingSpec:
    """The ring that averages a segment's buffers: as they are, since a variance that was rounded beside larger numbers
    may come out below zero."""
    chunk_elements = _chunk_elements(hop_rates(plan, ring), "exact")
    return RingSpec(f"{plan.rings.index(ring)}.buffers", _members(ring), elements, chunk_elements)


def hop_rates(plan: Plan, ring: Ring) -> tuple[float, ...]:
    """Bytes/s from each member to the next, of a flow that has the links to itself; none in a ring of one."""
    nodes = [plan.cluster(cluster).stages[index].node for cluster, index in ring.members]
    hops = pairwise([*nodes, nodes[0]]) if len(nodes) > 1 else ()
    return tuple(plan.fleet.flow_bytes_per_s(sender, receiver) for sender, receiver in hops)


def _members(ring: Ring) -> tuple[str, ...]:
    return tuple(stage_name(*member) for member in ring.members)


def _chunk_elements(rates: tuple[float, ...], wire: Wire) -> int:
    elements = chunk_elements_for(min(rates, default=None), _BYTES_PER_NUMBER[wire])
    # Blocks that share a scale do not end in the middle of a chunk.
    return elements // BLOCK * BLOCK if wire == "int8" else elements
