"""From a plan to the rings of its segments: who averages what, in which chunks and blocks, directly or around. Pure.

In: a plan, a ring of it and the length of its vector. Out: the `RingSpec` that every member of the ring is sent. It is
computed once, by whoever launches the run: two machines could come to different shares of equal worth.
"""

from collections.abc import Sequence

from cluster_planner import Plan, Ring, RingMember, links_of_ring
from ravnest.pipeline import stage_name
from ring_allreduce import RingSpec
from ring_allreduce.ring import Wire, bytes_per_element
from ring_timing import divide


def progress_ring(plan: Plan, ring: Ring, elements: int, wire: Wire) -> RingSpec:
    """The ring that averages a segment's progress, `elements` float32 numbers."""
    return ring_spec(plan, ring.members, str(plan.rings.index(ring)), elements, wire)


def buffers_ring(plan: Plan, ring: Ring, elements: int) -> RingSpec:
    """The ring that averages a segment's buffers. They travel as they are: a variance that was rounded beside larger
    numbers could come out below zero.
    """
    return ring_spec(plan, ring.members, f"{plan.rings.index(ring)}.buffers", elements, "exact")


def ring_spec(plan: Plan, members: Sequence[RingMember], name: str, elements: int, wire: Wire) -> RingSpec:
    """The ring in which `members` average `elements` float32 numbers that travel in the form `wire`."""
    links = links_of_ring(plan.fleet, [plan.cluster(cluster).stages[index].node for cluster, index in members])
    division = divide(elements, bytes_per_element(wire), links)
    names = tuple(stage_name(*member) for member in members)
    return RingSpec(
        name, names, elements, division.chunk_elements, wire=wire, shares=division.shares, direct=division.direct
    )
