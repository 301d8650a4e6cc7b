from dataclasses import replace

import pytest

from cluster_planner.fleet import Fleet, Link, Node, NodeData
from ravnest.machines.estimates import Estimate, Latency
from ravnest.machines.measured_fleet import (
    UNMEASURED_BYTES_PER_S,
    NodeMeasured,
    Rates,
    free_to_use,
    link_rate,
    measured_fleet,
    merged,
    node_rate,
)

MBPS = 125_000.0


def mbps(value: float, spread: float = 0.0) -> Estimate:
    return Estimate(value * MBPS, spread)


def measured(name: str, **changes: object) -> NodeMeasured:
    values: dict[str, object] = {
        "name": name,
        "machine": name,
        "address": f"10.0.0.{ord(name[0])}",
        "device": "cpu",
        "flops_per_s": Estimate(1e10, 0.01),
        "memory_bytes": 4 * 10**9,
    }
    return NodeMeasured(**{**values, **changes})  # type: ignore[arg-type]


UP, DOWN = {"a": 100.0, "b": 50.0, "c": 20.0}, {"a": 60.0, "b": 100.0, "c": 50.0}
RATES = Rates(
    pairs={(s, r): mbps(min(UP[s], DOWN[r])) for s in UP for r in UP if s != r},
    sent={s: mbps(min(UP[s], sum(DOWN[r] for r in UP if r != s))) for s in UP},
    received={r: mbps(min(DOWN[r], sum(UP[s] for s in UP if s != r))) for r in UP},
    latencies={("a", "b"): Latency(0.003, 0.001), ("a", "c"): Latency(0.046, 0.0), ("b", "c"): Latency(0.046, 0.0)},
)


def test_a_fleet_of_asymmetric_nodes_predicts_each_flow_that_was_measured() -> None:
    fleet, notes = measured_fleet([measured(name) for name in "abc"], RATES)
    assert not [note for note in notes if "uncertain" in note]
    for (sender, receiver), rate in RATES.pairs.items():
        assert fleet.flow_bytes_per_s(sender, receiver) == pytest.approx(rate.value, rel=0.01)
    assert fleet.node("a").up_bytes_per_s == pytest.approx(100 * MBPS)
    assert fleet.node("a").down_bytes_per_s == pytest.approx(60 * MBPS)
    assert fleet.link("a", "b").latency_s == 0.003
    assert fleet.link("a", "b").jitter_s == 0.001


def test_gpus_of_a_machine_share_its_rates_and_its_links() -> None:
    gpus = [measured(f"a-gpu{i}", machine="a", device=f"cuda:{i}") for i in range(2)]
    fleet, _ = measured_fleet([*gpus, measured("b"), measured("c")], RATES)
    assert fleet.same_host("a-gpu0", "a-gpu1")
    assert fleet.link("a-gpu1", "b").latency_s == 0.003


def test_a_machine_alone_has_stated_rates_and_a_note() -> None:
    fleet, notes = measured_fleet([measured("a")], Rates({}, {}, {}, {}))
    assert fleet.nodes[0].up_bytes_per_s == UNMEASURED_BYTES_PER_S
    assert len([note for note in notes if "not measured" in note]) == 2


def test_a_node_without_a_speed_is_left_out() -> None:
    fleet, _ = measured_fleet([measured("a"), measured("b", flops_per_s=None)], RATES)
    assert fleet.names == ("a",)


def test_several_peers_show_an_uplink_beyond_one_link() -> None:
    rate, notes = node_rate("the uplink of a", [mbps(50), mbps(60)], mbps(80))
    assert rate == 80 * MBPS
    assert notes == []


def test_an_uplink_that_nobody_fills_is_said_to_be_perhaps_more() -> None:
    rate, notes = node_rate("the uplink of a", [mbps(50), mbps(60)], mbps(108))
    assert rate == 108 * MBPS
    assert "may carry more" in notes[0]


def test_an_uncertain_rate_is_called_so() -> None:
    assert "uncertain" in node_rate("the uplink of a", [mbps(50, 0.6)], None)[1][0]


def test_a_link_slower_one_way_for_no_reason_of_its_nodes_is_put_down_as_the_slower() -> None:
    rate, notes = link_rate("a and b", mbps(30), mbps(80), 100 * MBPS, 100 * MBPS)
    assert rate == 30 * MBPS
    assert "the slower" in notes[0]


def test_a_pair_of_known_latency_alone_is_limited_by_its_nodes() -> None:
    assert link_rate("a and b", None, None, 20 * MBPS, 50 * MBPS) == (50 * MBPS, [])


def test_memory_leaves_a_reserve_and_is_divided_among_nodes_of_a_machine() -> None:
    assert free_to_use(20 * 10**9, 40 * 10**9, 2) == 9 * 10**9
    assert free_to_use(10**8, 8 * 10**9, 1) == 1


def test_merging_keeps_what_is_the_users_and_replaces_what_was_measured() -> None:
    fleet, _ = measured_fleet([measured("a"), measured("b")], RATES)
    data = NodeData(None, {"path": "/mnt"})
    old = Node(
        name="a", flops_per_s=1.0, memory_bytes=1, up_bytes_per_s=1.0, down_bytes_per_s=1.0, region="fra", data=data
    )
    away = replace(old, name="away", region="iad", data=None)
    known = Fleet((old, away), (Link("a", "away", 0.5, 7.0),))
    result = merged(fleet, known)
    assert result.names == ("a", "away", "b")
    assert (result.node("a").region, result.node("a").data) == ("fra", data)
    assert result.node("a").flops_per_s == 1e10
    assert result.node("away") == away
    assert result.link("a", "away").latency_s == 0.5
    assert result.link("a", "b").latency_s == 0.003


def test_merging_knows_a_gpu_by_its_address_and_device_whatever_it_is_called() -> None:
    gpus = [measured(f"box-gpu1-gpu{i}", machine="box-gpu1", address="10.0.0.9", device=f"cuda:{i}") for i in range(2)]
    fleet, _ = measured_fleet([*gpus, measured("b")], RATES)
    known = Fleet(tuple(replace(node, name=f"mine{i}", host="box") for i, node in enumerate(fleet.nodes[:2])))
    result = merged(fleet, known)
    assert result.names == ("mine0", "mine1", "b")
    assert [result.node(name).host for name in result.names] == ["box", "box", None]
    assert [result.node(name).device for name in result.names] == ["cuda:0", "cuda:1", "cpu"]
