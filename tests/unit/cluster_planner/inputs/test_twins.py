from collections.abc import Callable
from dataclasses import replace

import pytest

from cluster_planner.inputs.constraints import Constraints
from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.links import Link, RegionLink
from cluster_planner.inputs.twins import MOST_NODES, twins_of


@pytest.fixture
def sites(make_node: Callable[..., Node]) -> Fleet:
    nodes = tuple(make_node(name, region=name[0]) for name in ("a0", "a1", "b0", "b1", "a2"))
    ways = (RegionLink("a", "b", 0.05, 5e5), RegionLink("a", "a", 1e-3, 1e8), RegionLink("b", "b", 1e-3, 1e8))
    return Fleet(nodes, (), ways)


def test_equal_nodes_of_a_region_are_twins(sites: Fleet) -> None:
    assert twins_of(sites) == (0, 0, 2, 2, 0)


def test_a_node_that_is_another_in_any_respect_is_none(sites: Fleet) -> None:
    for other in ({"flops_per_s": 1.0}, {"memory_bytes": 2 * 10**9}, {"mtbf_s": 3600.0}, {"hours": 1}, {"host": "box"}):
        nodes = (sites.nodes[0], replace(sites.nodes[1], **other), *sites.nodes[2:])
        assert twins_of(replace(sites, nodes=nodes))[1] == 1, other


def test_a_measured_link_makes_its_ends_different(sites: Fleet) -> None:
    assert twins_of(replace(sites, links=(Link("a0", "b0", 0.01, 1e6),))) == (0, 1, 2, 3, 1)


def test_regions_that_are_linked_alike_have_twins_in_each(make_node: Callable[..., Node]) -> None:
    nodes = tuple(make_node(name, region=name) for name in "abc")
    ways = [RegionLink(a, b, 0.05, 5e5) for a, b in (("a", "b"), ("a", "c"), ("b", "c"))]
    assert twins_of(Fleet(nodes, (), tuple(ways))) == (0, 0, 0)
    slower = RegionLink("a", "b", 0.06, 5e5)
    assert twins_of(Fleet(nodes, (), (slower, *ways[1:]))) == (0, 0, 2), "a and b are both 60 ms from the other one"


def test_under_constraints_and_in_large_fleets_there_are_none(sites: Fleet, make_node: Callable[..., Node]) -> None:
    assert twins_of(replace(sites, constraints=Constraints(forbid=(("a0", "b0"),)))) == (0, 1, 2, 3, 4)
    many = Fleet(tuple(make_node(f"n{i}") for i in range(MOST_NODES + 1)))
    assert twins_of(many) == tuple(range(MOST_NODES + 1))
