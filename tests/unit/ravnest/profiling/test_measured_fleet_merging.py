from dataclasses import replace

import pytest

from cluster_planner import Fleet, Link, Node, NodeData, Pin
from ravnest.profiling.measured_fleet import MeasuredFleet, merged


def node(name: str, up: float = 100.0, down: float = 100.0, **changes: object) -> Node:
    values: dict[str, object] = {"flops_per_s": 1e10, "memory_bytes": 4, "up_bytes_per_s": up, "down_bytes_per_s": down}
    return Node(name=name, **{**values, "address": f"10.0.0.{ord(name[0])}", **changes})  # type: ignore[arg-type]


def old(name: str, up: float = 1.0, down: float = 1.0, **changes: object) -> Node:
    return replace(node(name, up, down), flops_per_s=1.0, memory_bytes=1, address=None, **changes)  # type: ignore[arg-type]


def test_what_is_the_users_stays_and_what_was_measured_replaces() -> None:
    data = NodeData(None, {"path": "/mnt"})
    away = old("away", region="iad")
    known = Fleet((old("a", region="fra", data=data), away), (Link("a", "away", 0.5, 7.0),))
    result = merged(MeasuredFleet(Fleet((node("a"), node("b")), (Link("a", "b", 0.003, 9.0),))), known)
    assert result.names == ("a", "away", "b")
    assert (result.node("a").region, result.node("a").data) == ("fra", data)
    assert (result.node("a").flops_per_s, result.node("a").up_bytes_per_s) == (1e10, 100.0)
    assert result.node("away") == away
    assert result.link("a", "away").latency_s == 0.5
    assert result.link("a", "b").latency_s == 0.003


def test_a_gpu_is_known_by_its_address_and_device_whatever_it_is_called() -> None:
    gpus = [node(f"x-gpu{i}", host="x", device=f"cuda:{i}", address="10.0.0.9") for i in range(2)]
    known = Fleet(tuple(replace(each, name=f"mine{i}", host="box") for i, each in enumerate(gpus)))
    result = merged(MeasuredFleet(Fleet((*gpus, node("b")))), known)
    assert result.names == ("mine0", "mine1", "b")
    assert [result.node(name).host for name in result.names] == ["box", "box", None]
    assert [result.node(name).device for name in result.names] == ["cuda:0", "cuda:1", "cpu"]


@pytest.mark.parametrize("called", ["desk", "renamed"])
def test_rates_that_nobody_measured_replace_none_of_the_users(called: str) -> None:
    known = Fleet((replace(old(called, 40.0, 200.0), address="10.0.0.100"),))
    alone = MeasuredFleet(Fleet((node("desk"),)), up_assumed=frozenset({"desk"}), down_assumed=frozenset({"desk"}))
    (result,) = merged(alone, known).nodes
    assert (result.up_bytes_per_s, result.down_bytes_per_s, result.flops_per_s) == (40.0, 200.0, 1e10)
    (result,) = merged(replace(alone, down_assumed=frozenset()), known).nodes
    assert (result.up_bytes_per_s, result.down_bytes_per_s) == (40.0, 100.0)


def test_nodes_of_a_host_share_what_was_measured_else_what_the_user_gave() -> None:
    gpus = [node(f"x-gpu{i}", host="x", device=f"cuda:{i}", address="10.0.0.9") for i in range(2)]
    known = Fleet((replace(old("x-gpu0", 40.0, 200.0), host="x", device="cuda:0"),))
    names = frozenset({"x-gpu0", "x-gpu1"})
    result = merged(MeasuredFleet(Fleet(tuple(gpus)), up_assumed=names), known)
    assert [(each.up_bytes_per_s, each.down_bytes_per_s) for each in result.nodes] == [(40.0, 100.0)] * 2


def test_a_known_rate_of_a_pair_is_replaced_by_a_measured_one_only() -> None:
    known = Fleet((old("a"), old("b"), old("c")), (Link("b", "a", 0.5, 7.0), Link("b", "c", 0.5, 8.0)))
    nodes, links = (node("a"), node("b"), node("c")), (Link("a", "b", 0.003, 99.0), Link("a", "c", 0.004, 99.0))
    pairs = frozenset({frozenset("ab"), frozenset("ac")})
    result = merged(MeasuredFleet(Fleet(nodes, links), links_assumed=pairs), known)
    assert (result.link("a", "b").latency_s, result.link("a", "b").bytes_per_s) == (0.003, 7.0)
    assert (result.link("b", "c").latency_s, result.link("b", "c").bytes_per_s) == (0.5, 8.0)
    assert (result.link("a", "c").latency_s, result.link("a", "c").bytes_per_s) == (0.004, 99.0)
    result = merged(MeasuredFleet(Fleet(nodes, links)), known)
    assert result.link("a", "b").bytes_per_s == 99.0


def test_constraints_stay_and_what_a_byte_takes_is_the_measured_one() -> None:
    demanded = replace(Fleet((old("a"),)).constraints, min_clusters=2, pins=(Pin("a", "c0"),))
    known = Fleet((old("a"), old("b")), constraints=demanded, flops_per_byte=3.0)
    result = merged(MeasuredFleet(Fleet((node("a"), node("b")), flops_per_byte=8.0)), known)
    assert result.constraints == demanded
    assert result.flops_per_byte == 8.0
