from collections.abc import Callable

import pytest

from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.links import RegionLink
from cluster_planner.search.arcs import arcs_of, open_tour


def line(make_node: Callable[..., Node], places: list[str], memory: list[int]) -> Fleet:
    """Nodes in regions a, b, c, which lie on a line: 10 ms from a to b, 30 ms from b to c."""
    nodes = tuple(
        make_node(f"n{i}", region=place, memory_bytes=bytes_, up_bytes_per_s=1e9, down_bytes_per_s=1e9)
        for i, (place, bytes_) in enumerate(zip(places, memory, strict=True))
    )
    far = [*((place, place, 1e-3) for place in "abc"), ("a", "b", 10e-3), ("b", "c", 30e-3), ("a", "c", 40e-3)]
    links = tuple(RegionLink(a, b, late_s, 1e9) for a, b, late_s in far if {a, b} <= set(places))
    return Fleet(nodes, (), links)


def test_a_tour_goes_from_place_to_place_and_is_opened_at_its_dearest_hop(make_node: Callable[..., Node]) -> None:
    fleet = line(make_node, list("cabcabcab"), [10**9] * 9)
    tour = open_tour(fleet, tuple(range(9)), 1e3)
    assert sorted(tour) == list(range(9))
    assert "".join(str(fleet.nodes[i].region) for i in tour) in ("aaabbbccc", "cccbbbaaa")


def test_a_tour_is_of_the_nodes_that_are_asked_for(make_node: Callable[..., Node]) -> None:
    fleet = line(make_node, list("abcabc"), [10**9] * 6)
    assert sorted(open_tour(fleet, (1, 2, 4), 1e3)) == [1, 2, 4]


def test_arcs_of_equal_nodes_are_equally_large(make_node: Callable[..., Node]) -> None:
    fleet = line(make_node, ["a"] * 64, [10**9] * 64)
    for k, sizes in ((1, {64}), (2, {32}), (3, {21, 22}), (5, {12, 13}), (9, {7, 8}), (64, {1})):
        arcs = arcs_of(fleet, tuple(range(64)), k)
        assert {len(arc) for arc in arcs} == sizes
        assert sorted(i for arc in arcs for i in arc) == list(range(64))


def test_arcs_have_equally_much_memory(make_node: Callable[..., Node]) -> None:
    fleet = line(make_node, ["a"] * 6, [4 * 10**9, 10**9, 10**9, 10**9, 10**9, 4 * 10**9])
    assert arcs_of(fleet, (0, 1, 2, 3, 4, 5), 3) == ((0,), (1, 2, 3, 4), (5,))


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_each_arc_has_a_node_wherever_memory_lies(make_node: Callable[..., Node], k: int) -> None:
    for rich in range(5):
        fleet = line(make_node, ["a"] * 5, [10**12 if i == rich else 1 for i in range(5)])
        arcs = arcs_of(fleet, (0, 1, 2, 3, 4), k)
        assert len(arcs) == k
        assert all(arcs)
        assert sorted(i for arc in arcs for i in arc) == [0, 1, 2, 3, 4]
