"""A predicted round of a ring follows the division of `ring_timing` over the links of the fleet."""

import random
from collections.abc import Callable
from itertools import combinations, pairwise, permutations

import pytest

from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.links import Link
from cluster_planner.rings import exchange_of, links_of_ring
from ring_timing import divide, hop_bytes


def random_ring(seed: int, make_node: Callable[..., Node]) -> tuple[Fleet, list[str]]:
    draw = random.Random(seed)
    names = [f"n{i}" for i in range(2 + seed % 6)]
    nodes = tuple(make_node(name, up_bytes_per_s=draw.choice([1e5, 1e6, 1e7]) * draw.uniform(1, 3)) for name in names)
    links = tuple(Link(a, b, draw.uniform(0.001, 0.1), 1e9) for a, b in combinations(names, 2))
    return Fleet(nodes, links), names


@pytest.mark.parametrize("seed", range(20))
def test_links_are_those_of_the_fleet(seed: int, make_node: Callable[..., Node]) -> None:
    fleet, names = random_ring(seed, make_node)
    links, hops = links_of_ring(fleet, names), list(pairwise([*names, names[0]]))
    assert links.hop_bytes_per_s == tuple(fleet.flow_bytes_per_s(a, b) for a, b in hops)
    assert links.hop_latency_s == tuple(fleet.link(a, b).latency_s for a, b in hops)
    assert links.pair_bytes_per_s == min(fleet.flow_bytes_per_s(a, b) for a, b in permutations(names, 2))
    assert links.pair_latency_s == max(link.latency_s for link in fleet.links)


@pytest.mark.parametrize("seed", range(40))
def test_flows_are_those_of_the_division(seed: int, make_node: Callable[..., Node]) -> None:
    fleet, names = random_ring(seed, make_node)
    elements = int(10 ** random.Random(seed).uniform(2.5, 7.0))
    links = links_of_ring(fleet, names)
    division, exchange = divide(elements, 4.0, links), exchange_of(fleet, names, elements, 4.0)
    senders, receivers = (part.tolist() for part in divmod(exchange.pairs, len(fleet.nodes)))
    flows = [(fleet.names[a], fleet.names[b]) for a, b in zip(senders, receivers, strict=True)]
    if division.direct:
        assert flows == list(permutations(names, 2))
        assert exchange.sent_bytes.tolist() == [4.0 * elements] * len(flows)
        assert exchange.sending_s == pytest.approx(4 * elements / links.pair_bytes_per_s)
        rates = [fleet.flow_bytes_per_s(a, b) for a, b in flows]
        assert exchange.taken_s.tolist() == pytest.approx([4 * elements / rate for rate in rates])
        assert exchange.latency_s.tolist() == [fleet.link(a, b).latency_s for a, b in flows]
        return
    assert flows == list(pairwise([*names, names[0]]))
    assert tuple(exchange.sent_bytes.tolist()) == hop_bytes(4 * elements, len(names), division.shares)
    busy = [sent / rate for sent, rate in zip(exchange.sent_bytes.tolist(), links.hop_bytes_per_s, strict=True)]
    assert exchange.taken_s.tolist() == busy
    assert exchange.latency_s.tolist() == list(links.hop_latency_s)
    assert exchange.sending_s == pytest.approx(max(busy))
    assert exchange.slowest == names[busy.index(max(busy))]
    assert exchange.way_s > 2 * (len(names) - 1) * min(links.hop_latency_s)
    assert exchange.last_hop_s == max(links.hop_latency_s)


def test_a_lone_member_has_no_links(make_node: Callable[..., Node]) -> None:
    fleet = Fleet((make_node("n0"),), ())
    assert links_of_ring(fleet, ["n0"]).hop_bytes_per_s == ()
