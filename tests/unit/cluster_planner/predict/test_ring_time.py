import random
from collections.abc import Callable
from itertools import combinations, pairwise, permutations

import pytest

from cluster_planner.inputs.fleet import Fleet, Link, Node
from cluster_planner.predict.ring_time import exchange_of, hop_bytes
from ring_timing.layout import direct_is_faster
from ring_timing.shares import round_s, shares_from_hops


@pytest.mark.parametrize("seed", range(40))
def test_hops_carry_what_a_run_lets_them_carry(seed: int) -> None:
    draw = random.Random(seed)
    rates = [draw.choice([1e5, 1e6, 1e7]) * draw.uniform(1.0, 3.0) for _ in range(3 + seed % 6)]
    carried = hop_bytes(1e6, rates)
    assert sum(carried) == pytest.approx(2 * (len(rates) - 1) * 1e6)
    assert all(1e6 * (1 - 1e-9) <= sent <= 2e6 * (1 + 1e-9) for sent in carried)
    estimated = max(sent / rate for sent, rate in zip(carried, rates, strict=True))
    planned = round_s(1e6, rates, shares_from_hops(rates))
    assert 0.85 * planned <= estimated <= planned / 0.97


@pytest.mark.parametrize("seed", range(20))
def test_who_exchanges_directly_is_who_does_in_a_run(seed: int, make_node: Callable[..., Node]) -> None:
    draw = random.Random(seed)
    names = [f"n{i}" for i in range(2 + seed % 5)]
    nodes = tuple(make_node(name, up_bytes_per_s=draw.uniform(1e6, 1e7)) for name in names)
    links = tuple(Link(a, b, draw.uniform(0.001, 0.1), 1e9) for a, b in combinations(names, 2))
    fleet, vector_bytes = Fleet(nodes, links), 10 ** draw.uniform(3.0, 6.5)
    longest_s = max(link.latency_s for link in links)
    slowest = min(fleet.flow_bytes_per_s(a, b) for a, b in permutations(names, 2))
    exchange = exchange_of(fleet, names, vector_bytes)
    pairs = [(sender, receiver) for sender, receiver, _ in exchange.flows]
    if direct_is_faster(int(vector_bytes), len(names), longest_s, slowest):
        assert sorted(pairs) == sorted(permutations(names, 2))
        assert exchange.sending_s == pytest.approx(vector_bytes / slowest)
    else:
        assert pairs == list(pairwise([*names, names[0]]))
        assert exchange.way_s > 2 * (len(names) - 1) * min(link.latency_s for link in links)
