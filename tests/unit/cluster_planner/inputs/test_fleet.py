import math
from collections.abc import Callable

import pytest

from cluster_planner.errors import InvalidInput
from cluster_planner.inputs.fleet import CUDA_PROCESS_BYTES, PROCESS_BYTES, Fleet, Node
from cluster_planner.inputs.links import DEFAULT_LATENCY_S, DEFAULT_REGION_LATENCY_S, HOST_LATENCY_S, Link, RegionLink


def test_a_measured_link_wins_over_host_region_and_estimate(make_node: Callable[..., Node]) -> None:
    nodes = (make_node("a", region="x", host="h"), make_node("b", region="y", host="h"))
    fleet = Fleet(nodes, (Link("b", "a", 0.003, 7.0),), (RegionLink("x", "y", 0.1, 9.0),))
    assert fleet.link("a", "b") == fleet.link("b", "a") == Link("b", "a", 0.003, 7.0)


def test_nodes_of_one_host_need_no_uplink(make_node: Callable[..., Node]) -> None:
    fleet = Fleet((make_node("a", host="h"), make_node("b", host="h")))
    assert fleet.link("a", "b").latency_s == HOST_LATENCY_S
    assert fleet.flow_bytes_per_s("a", "b") == fleet.link("a", "b").bytes_per_s > 5e6


def test_regions_stand_in_for_pairs(make_node: Callable[..., Node]) -> None:
    nodes = (make_node("a", region="x"), make_node("b", region="y"))
    fleet = Fleet(nodes, (), (RegionLink("y", "x", 0.1, 9.0, 0.02),))
    assert fleet.link("b", "a") == Link("a", "b", 0.1, 9.0, 0.02)


def test_shortest_paths_estimate_the_rest(make_node: Callable[..., Node]) -> None:
    fleet = Fleet(tuple(make_node(n) for n in "abc"), (Link("a", "b", 0.01, 8.0), Link("b", "c", 0.02, 6.0)))
    assert fleet.link("c", "a") == Link("a", "c", 0.03, 6.0)


@pytest.mark.parametrize(
    ("regions", "latency_s"), [(("x", "x"), DEFAULT_REGION_LATENCY_S), (("x", "y"), DEFAULT_LATENCY_S)]
)
def test_nothing_known_means_the_stated_default(
    make_node: Callable[..., Node], regions: tuple[str, str], latency_s: float
) -> None:
    fleet = Fleet((make_node("a", region=regions[0]), make_node("b", region=regions[1])))
    assert fleet.link("a", "b").latency_s == latency_s
    assert fleet.flow_bytes_per_s("a", "b") == 5e6


def test_a_flow_is_limited_by_uplink_downlink_and_link(make_node: Callable[..., Node]) -> None:
    a, b = make_node("a", up_bytes_per_s=10.0, down_bytes_per_s=3.0), make_node("b", up_bytes_per_s=8.0)
    fleet = Fleet((a, b), (Link("a", "b", 0.0, 9.0),))
    assert fleet.flow_bytes_per_s("a", "b") == 9.0
    assert fleet.flow_bytes_per_s("b", "a") == 3.0


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize(
    "field", ["flops_per_s", "memory_bytes", "up_bytes_per_s", "down_bytes_per_s", "mtbf_s", "process_bytes"]
)
def test_impossible_rates_are_refused(make_node: Callable[..., Node], field: str, value: float) -> None:
    with pytest.raises(InvalidInput, match=field):
        make_node("a", **{field: value})


@pytest.mark.parametrize(("latency_s", "rate"), [(-1.0, 1.0), (math.nan, 1.0), (0.0, 0.0), (0.0, math.inf)])
def test_impossible_links_are_refused(latency_s: float, rate: float) -> None:
    with pytest.raises(InvalidInput, match="a–b"):
        Link("a", "b", latency_s, rate)


@pytest.mark.parametrize("jitter_s", [-1.0, math.nan, math.inf])
def test_impossible_jitter_is_refused(jitter_s: float) -> None:
    with pytest.raises(InvalidInput, match="jitter_s: must be a finite number, 0 or more"):
        RegionLink("a", "b", 0.0, 1.0, jitter_s)


def test_contradictions_name_their_key(make_node: Callable[..., Node]) -> None:
    a, b = make_node("desk", region="fra"), make_node("laptop")
    link = Link("desk", "laptop", 0.1, 1.0)
    cases: list[tuple[Callable[[], Fleet], str]] = [
        (lambda: Fleet(()), "nodes: at least one node"),
        (lambda: Fleet((a, a)), r"nodes\[1\].name: 'desk' is already the name of nodes\[0\]"),
        (
            lambda: Fleet((a, b), (Link("desk", "labtop", 0.1, 1.0),)),
            "no node is named 'labtop'; did you mean 'laptop'",
        ),
        (lambda: Fleet((a, b), (link, Link("laptop", "desk", 0.2, 1.0))), r"links\[1\].between: .* links\[0\]"),
        (lambda: Fleet((a, b), (Link("desk", "desk", 0.1, 1.0),)), "to itself"),
        (lambda: Fleet((a, b), (), (RegionLink("fra", "fro", 0.1, 1.0),)), r"regions\[0\].between: .*'fra'"),
        (
            lambda: Fleet((make_node("a", host="h"), make_node("b", host="h", up_bytes_per_s=1.0))),
            r"nodes\[1\].host: .*same rates",
        ),
    ]
    for build, message in cases:
        with pytest.raises(InvalidInput, match=message):
            build()


def test_unknown_names_and_self_links_are_refused(make_node: Callable[..., Node]) -> None:
    fleet = Fleet((make_node("desk"), make_node("laptop")))
    with pytest.raises(InvalidInput, match="did you mean 'desk'"):
        fleet.node("desl")
    with pytest.raises(InvalidInput, match="no link to itself"):
        fleet.link("desk", "desk")


def test_on_a_gpu_a_stage_finds_less_room_as_its_process_takes_more_there(make_node: Callable[..., Node]) -> None:
    assert make_node("a").room_bytes == make_node("a").memory_bytes == 10**9
    assert make_node("a", device="cuda:1").room_bytes == 10**9 - (CUDA_PROCESS_BYTES - PROCESS_BYTES)
    measured = make_node("a", device="cuda", process_bytes=PROCESS_BYTES + 7)
    assert (measured.beyond_bytes, measured.room_bytes) == (7, 10**9 - 7)
    assert make_node("a", device="cuda", process_bytes=1).room_bytes == 10**9  # needs hold PROCESS_BYTES already
    assert make_node("a", device="cuda", memory_bytes=5).room_bytes == 0
    assert Fleet((measured,)).arrays.room_bytes.tolist() == [10**9 - 7]
