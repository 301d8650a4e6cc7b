import random
from dataclasses import replace
from statistics import mean

import pytest

from ravnest.profiling.estimates import MeasuredFigure, MeasuredLatency
from ravnest.profiling.measured_fleet import (
    UNMEASURED_BYTES_PER_S,
    NodeMeasured,
    Rates,
    free_to_use,
    link_rate,
    measured_fleet,
    node_rate,
)

MBPS = 125_000.0


def mbps(value: float, spread: float = 0.0) -> MeasuredFigure:
    return MeasuredFigure(value * MBPS, spread)


def measured(name: str, **changes: object) -> NodeMeasured:
    values: dict[str, object] = {
        "name": name,
        "machine": name,
        "address": f"10.0.0.{ord(name[0])}",
        "device": "cpu",
        "flops_per_s": MeasuredFigure(1e10, 0.01),
        "memory_bytes": 4 * 10**9,
    }
    return NodeMeasured(**{**values, **changes})  # type: ignore[arg-type]


UP, DOWN = {"a": 100.0, "b": 50.0, "c": 20.0}, {"a": 60.0, "b": 100.0, "c": 50.0}
RATES = Rates(
    pairs={(s, r): mbps(min(UP[s], DOWN[r])) for s in UP for r in UP if s != r},
    sent={s: mbps(min(UP[s], sum(DOWN[r] for r in UP if r != s))) for s in UP},
    received={r: mbps(min(DOWN[r], sum(UP[s] for s in UP if s != r))) for r in UP},
    latencies={
        ("a", "b"): MeasuredLatency(0.003, 0.001),
        ("a", "c"): MeasuredLatency(0.046, 0.0),
        ("b", "c"): MeasuredLatency(0.046, 0.0),
    },
)


def test_a_fleet_of_asymmetric_nodes_predicts_each_flow_that_was_measured() -> None:
    found = measured_fleet([measured(name) for name in "abc"], RATES)
    fleet = found.fleet
    assert not [note for note in found.notes if "uncertain" in note]
    assert not found.up_assumed | found.down_assumed
    assert not found.links_assumed
    for (sender, receiver), rate in RATES.pairs.items():
        assert fleet.flow_bytes_per_s(sender, receiver) == pytest.approx(rate.value, rel=0.01)
    assert fleet.node("a").up_bytes_per_s == pytest.approx(100 * MBPS)
    assert fleet.node("a").down_bytes_per_s == pytest.approx(60 * MBPS)
    assert fleet.link("a", "b").latency_s == 0.003
    assert fleet.link("a", "b").jitter_s == 0.001


def test_gpus_of_a_machine_share_its_rates_and_its_links() -> None:
    gpus = [
        measured(
            f"a-gpu{i}",
            machine="a",
            device=f"cuda:{i}",
            process_bytes=i * 777_123_456 or None,
            host_memory_bytes=12_345_678_901,
        )
        for i in (0, 1)
    ]
    fleet = measured_fleet([*gpus, measured("b"), measured("c")], RATES).fleet
    assert fleet.same_host("a-gpu0", "a-gpu1")
    assert fleet.link("a-gpu1", "b").latency_s == 0.003
    assert [fleet.node(f"a-gpu{i}").process_bytes for i in (0, 1)] == [None, 777_100_000]
    assert [fleet.node(f"a-gpu{i}").host_memory_bytes for i in (0, 1)] == [12_350_000_000] * 2


def test_a_machine_alone_has_stated_rates_and_a_note() -> None:
    found = measured_fleet([measured("a")], Rates({}, {}, {}, {}))
    assert found.fleet.nodes[0].up_bytes_per_s == UNMEASURED_BYTES_PER_S
    assert found.up_assumed == found.down_assumed == {"a"}
    assert len([note for note in found.notes if "not measured" in note]) == 2


def test_a_pair_whose_transfers_failed_has_no_link_and_one_that_was_not_tried_is_told() -> None:
    nodes = [measured(name) for name in "abc"]
    pairs = {pair: rate for pair, rate in RATES.pairs.items() if "c" not in pair}
    rates = replace(RATES, pairs=pairs, sent={}, received={}, failed=[("c", "a"), ("a", "b")])
    found = measured_fleet(nodes, rates)
    assert [(link.a, link.b) for link in found.fleet.links] == [("a", "b"), ("b", "c")]
    assert found.links_assumed == {frozenset("bc")}
    assert found.up_assumed == found.down_assumed == {"c"}
    assert found.fleet.link("b", "c").latency_s == 0.046
    assert any(note.startswith("a and c are left without a link") for note in found.notes)
    assert any(note.startswith("1 pair has a latency and no rate") for note in found.notes)


def test_a_node_without_a_speed_is_left_out() -> None:
    fleet = measured_fleet([measured("a"), measured("b", flops_per_s=None)], RATES).fleet
    assert fleet.names == ("a",)


def test_several_peers_show_an_uplink_beyond_one_link() -> None:
    rate, notes = node_rate("the uplink of a", [mbps(50), mbps(60)], mbps(80))
    assert rate == 80 * MBPS
    assert notes == []


def test_an_uplink_that_nobody_fills_is_said_to_be_perhaps_more() -> None:
    rate, notes = node_rate("the uplink of a", [mbps(50), mbps(60)], mbps(108))
    assert rate == 108 * MBPS
    assert "may carry more" in notes[0]


def test_a_steadier_rate_stands_for_a_larger_one_that_varied_more() -> None:
    rate, notes = node_rate("the uplink of a", [mbps(54.58, 2.59), mbps(50, 0.02), mbps(49, 0.2), mbps(20)], None)
    assert (rate, notes) == (50 * MBPS, [])
    rate, notes = node_rate("the uplink of a", [mbps(20), mbps(20)], mbps(60, 0.3))
    assert rate == 60 * MBPS  # more than it varied above what single peers take
    assert "uncertain" in notes[0]


def test_the_rate_of_a_node_is_not_the_luckiest_of_many_samples() -> None:
    chance = random.Random(0)
    rates, luckiest = [], []
    for _ in range(200):
        spreads = [chance.choice([0.02, 0.1, 0.5]) for _ in range(8)]
        seen = [mbps(50 * chance.gauss(1, spread / 3), spread) for spread in spreads]
        rate, _ = node_rate("the uplink of a", seen, None)
        assert rate is not None
        rates.append(rate / MBPS)
        luckiest.append(max(each.value for each in seen) / MBPS)
    assert mean(luckiest) > 56
    assert mean(rates) == pytest.approx(50, rel=0.04)


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
