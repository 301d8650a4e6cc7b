import dataclasses

import pytest

from cluster_planner import Link, Node, links_of_ring
from ravnest.driver.stage_setups import buffers_ring, progress_ring
from ring_allreduce.ring import BLOCK
from ring_timing import shares_from_hops
from tests.support.local import setups_of, tiny_job


def plan_of(clusters, **rates):
    """One node a cluster, 10 MB/s each way but for `rates`: node → what its links carry."""
    _, plan = setups_of(tiny_job(), parts=(1,) * clusters)
    nodes = []
    for node in plan.fleet.nodes:
        assert isinstance(node, Node)
        rate = rates.get(node.name, node.up_bytes_per_s)
        nodes.append(dataclasses.replace(node, up_bytes_per_s=rate, down_bytes_per_s=rate))
    return dataclasses.replace(plan, fleet=dataclasses.replace(plan.fleet, nodes=tuple(nodes)))


def hop_rates(plan):
    ring = plan.rings[0]
    return links_of_ring(plan.fleet, [plan.cluster(c).stages[i].node for c, i in ring.members]).hop_bytes_per_s


def test_a_slow_member_carries_less():
    slow, alike = plan_of(4, n10=5e5), plan_of(4)
    spec = progress_ring(slow, slow.rings[0], 10**7, "exact")
    assert spec.shares == shares_from_hops(hop_rates(slow))
    assert spec.shares is not None
    assert progress_ring(alike, alike.rings[0], 10**7, "exact").shares is None


def test_chunks_follow_the_slowest_hop():
    usual, slow = (
        progress_ring(plan, plan.rings[0], 10**8, "exact").chunk_elements for plan in (plan_of(2), plan_of(2, n10=1e6))
    )
    assert slow < usual


@pytest.mark.parametrize(
    ("wire", "part"), [("exact", 1), ("bfloat16", 2), ("float16", 2), ("int8", 4), ("int4", 4 / (17 / 32))]
)
def test_chunks_hold_more_numbers_in_a_shorter_form_and_whole_blocks(wire, part):
    plan = plan_of(2, n10=1e6)
    usual = progress_ring(plan, plan.rings[0], 10**8, "exact").chunk_elements
    spec = progress_ring(plan, plan.rings[0], 10**8, wire)
    assert spec.wire == wire
    assert abs(spec.chunk_elements - part * usual) <= part * BLOCK
    if wire in ("int8", "int4"):
        assert spec.chunk_elements % BLOCK == 0


def test_small_vectors_and_pairs_go_direct_and_large_ones_around():
    pair, ring = plan_of(2), plan_of(4, n10=5e5)
    assert progress_ring(pair, pair.rings[0], 10**7, "exact").direct
    small = progress_ring(ring, ring.rings[0], 100, "exact")
    assert small.direct
    assert small.shares is None
    assert not progress_ring(ring, ring.rings[0], 10**7, "exact").direct
    assert buffers_ring(ring, ring.rings[0], 24).direct


def test_a_slow_pair_across_the_ring_speaks_against_direct_exchange():
    plan = plan_of(4, n00=1.25e7, n10=1.25e7, n20=1.25e7, n30=1.25e7)
    (ring,) = plan.rings
    nodes = [f"n{member[0][1:]}0" for member in ring.members]

    def linked(across):
        rates = {frozenset((nodes[0], nodes[2])): across, frozenset((nodes[1], nodes[3])): across}
        pairs = [(a, b) for i, a in enumerate(nodes) for b in nodes[i + 1 :]]
        links = tuple(Link(a, b, 0.02, rates.get(frozenset((a, b)), 1.25e7)) for a, b in pairs)
        return dataclasses.replace(plan, fleet=dataclasses.replace(plan.fleet, links=links))

    slow, alike = linked(1.25e5), linked(1.25e7)
    assert hop_rates(slow) == hop_rates(alike), "the hops of the ring are fast in both"
    assert progress_ring(alike, ring, 25_000, "exact").direct
    assert not progress_ring(slow, ring, 25_000, "exact").direct


def test_buffers_travel_as_they_are_beside_their_segment():
    plan = plan_of(3, n10=1e6)
    spec, beside = buffers_ring(plan, plan.rings[0], 24), progress_ring(plan, plan.rings[0], 1000, "int8")
    assert (spec.wire, spec.shares, spec.elements) == ("exact", None, 24)
    assert spec.members == beside.members == ("c0.s0", "c1.s0", "c2.s0")
    assert (beside.name, spec.name) == ("0", "0.buffers")
