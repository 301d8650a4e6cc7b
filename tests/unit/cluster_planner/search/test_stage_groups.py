from collections.abc import Callable

import numpy as np

from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.links import RegionLink
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.search.stage_groups import orders_across
from cluster_planner.search.starting_groups import embed

Given = tuple[Callable[..., ModelCosts], Callable[..., Workload]]


def world(make_node: Callable[..., Node], sizes: dict[str, int]) -> Fleet:
    """Regions on a line: each 50 ms from the next, and slower the farther apart."""
    names = list(sizes)
    nodes = tuple(
        make_node(f"{name}{i}", region=name, flops_per_s=(1 + i) * 1e9, up_bytes_per_s=1e9, down_bytes_per_s=1e9)
        for name, size in sizes.items()
        for i in range(size)
    )
    links = tuple(
        RegionLink(a, b, 1e-3 + 0.05 * (j - i), 1e9 / (1 + 9 * (j - i)))
        for i, a in enumerate(names)
        for j, b in enumerate(names)
        if i <= j
    )
    return Fleet(nodes, (), links)


def found(fleet: Fleet, spans: SpanCosts, clusters: list[int]) -> list[list[str]]:
    """Each as the nodes of its clusters in order: 'a1 b1 c1'."""
    points = embed(fleet, fleet.names)
    everyone = tuple(range(len(fleet.nodes)))
    orders = orders_across(fleet, spans, points, everyone, clusters, 0)
    return [[" ".join(fleet.names[i] for i in order) for order in one] for one in orders]


def test_stages_are_regions_and_pipelines_take_the_short_way_between(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    fleet = world(make_node, {"b": 3, "a": 3, "c": 3})  # b—a—c on the line
    spans = SpanCosts(make_model(8, boundary_bytes=10**6), make_workload())
    plans = found(fleet, spans, [3])
    there = ["b2 a2 c2", "b1 a1 c1", "b0 a0 c0"]
    back = ["c2 a2 b2", "c1 a1 b1", "c0 a0 b0"]
    assert there in plans or back in plans


def test_every_cluster_has_a_node_of_each_stage_and_none_twice(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    fleet = world(make_node, {"a": 5, "b": 4, "c": 2})
    spans = SpanCosts(make_model(8), make_workload())
    plans = found(fleet, spans, [1, 2, 3, 4, 11])
    assert {len(plan) for plan in plans} == {1, 2, 3, 4, 11}
    for plan in plans:
        clusters = [cluster.split() for cluster in plan]
        assert len({len(cluster) for cluster in clusters}) == 1
        nodes = [node for cluster in clusters for node in cluster]
        assert len(nodes) == len(set(nodes))
        assert len(nodes) > 11 - len(plan)  # no whole stage is left out
    assert plans == list(map(list, dict.fromkeys(map(tuple, plans))))


def test_only_nodes_that_may_run_are_dealt(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    fleet = world(make_node, {"a": 4, "b": 4})
    spans = SpanCosts(make_model(8), make_workload())
    able = (0, 1, 4, 5)
    for orders in orders_across(fleet, spans, embed(fleet, fleet.names), able, [2], 0):
        assert set(np.array(orders).flatten().tolist()) <= set(able)
