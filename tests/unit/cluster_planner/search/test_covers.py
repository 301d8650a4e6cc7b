from collections.abc import Callable

import numpy as np
import pytest

from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.links import RegionLink
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.search.covers import covers

Given = tuple[Callable[..., ModelCosts], Callable[..., Workload]]


@pytest.fixture
def given(make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]) -> Given:
    return make_model, make_workload


def spans_of(given: Given, average_every: int) -> SpanCosts:
    return SpanCosts(given[0](8, parameter_bytes=2 * 10**6), given[1](average_every=average_every, update_every=8))


def test_each_cover_has_so_many_clusters_that_cover_the_model_with_different_nodes(
    make_node: Callable[..., Node], given: Given
) -> None:
    random = np.random.default_rng(0)
    nodes = tuple(make_node(f"n{i}", flops_per_s=float(random.uniform(1e9, 3e10))) for i in range(9))
    for least in (1, 2):
        for cover in covers(Fleet(nodes), spans_of(given, 512), (0, 2, 3, 4, 5, 7, 8), [1, 2, 3], least):
            chosen = [node for chain in cover for node, _, _ in chain]
            assert len(set(chosen)) == len(chosen)
            assert set(chosen) <= {0, 2, 3, 4, 5, 7, 8}
            for chain in cover:
                assert len(chain) >= least
                assert [start for _, start, _ in chain] == [0, *(end for _, _, end in chain[:-1])]
                assert chain[-1][2] == 8


def test_where_rounds_starve_nodes_with_slow_links_hold_little_or_nothing(
    make_node: Callable[..., Node], given: Given
) -> None:
    rates = [2e7, 2e7, 2e7, 2e7, 2e5, 2e5]
    nodes = tuple(
        make_node(f"n{i}", up_bytes_per_s=rate, down_bytes_per_s=rate, flops_per_s=1e10 if rate > 1e6 else 9e10)
        for i, rate in enumerate(rates)
    )
    found = list(covers(Fleet(nodes), spans_of(given, 64), tuple(range(6)), [2], 1))
    assert found
    for cover in found:
        assert {node for chain in cover for node, _, _ in chain} <= {0, 1, 2, 3}


def test_no_cluster_hops_over_a_link_that_takes_longer_than_the_round(
    make_node: Callable[..., Node], given: Given
) -> None:
    nodes = tuple(make_node(f"{place}{i}", region=place) for place in "ab" for i in range(3))
    near = [RegionLink(place, place, 1e-3, 1e8) for place in "ab"]
    fleet = Fleet(nodes, (), (RegionLink("a", "b", 0.1, 1e3), *near))
    found = list(covers(fleet, spans_of(given, 4096), tuple(range(6)), [2], 2))
    assert found
    for cover in found:
        assert all(len({fleet.nodes[node].region for node, _, _ in chain}) == 1 for chain in cover)


def test_there_is_no_cover_where_memory_holds_the_model_less_often(
    make_node: Callable[..., Node], given: Given
) -> None:
    nodes = tuple(make_node(f"n{i}", memory_bytes=10**8 + 7 * 10**7) for i in range(2))
    counts = [len(cover) for cover in covers(Fleet(nodes), spans_of(given, 512), (0, 1), [1, 2], 1)]
    assert set(counts) == {1}
