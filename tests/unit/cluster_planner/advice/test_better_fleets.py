from collections.abc import Callable

from cluster_planner import Fleet, Link, Node
from cluster_planner.advice.better_fleets import with_host, with_link, with_memory, with_speed


def test_one_thing_is_better_and_all_else_as_it_was(make_node: Callable[..., Node]) -> None:
    fleet = Fleet((make_node("a", host="h"), make_node("b", host="h"), make_node("c")), (Link("a", "c", 0.1, 1e6),))
    up = with_host(fleet, "a", up=2.0)
    assert [node.up_bytes_per_s for node in up.nodes] == [1e7, 1e7, 5e6]
    assert [node.down_bytes_per_s for node in up.nodes] == [node.down_bytes_per_s for node in fleet.nodes]
    assert with_link(fleet, "c", "a", latency=0.5).links == (Link("a", "c", 0.05, 1e6),)
    assert with_memory(fleet, "c", 7).node("c").memory_bytes == 7
    assert with_speed(fleet, "c", 7.0).node("c").flops_per_s == 7.0
    assert with_speed(fleet, "c", 7.0).nodes[:2] == fleet.nodes[:2]
