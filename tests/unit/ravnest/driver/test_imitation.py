"""What stages are told of their nodes: as the plan predicts and the simulator computes, scaled by the speed."""

import dataclasses
import math

import pytest

from cluster_planner import Link, SpanCosts, work_times
from ravnest.driver.imitation import Imitation, device_of, imitated_node
from ravnest.errors import InvalidInput
from ravnest.simulator.fleet import fleet_of_plan
from ravnest.stage.setup import ImitatedNode, MemoryCap
from ring_allreduce.transport import LinkShape, NodeShape
from tests.support.local import setups_of, tiny_job

WHOLE = Imitation()


def a_plan():
    """c0: n00, n01; c1: n10. A measured link between the first two."""
    _, plan = setups_of(tiny_job(), parts=(2, 1))
    return with_links(plan, Link("n00", "n01", 0.01, 2e6, 0.004))


def with_links(plan, *links):
    return dataclasses.replace(plan, fleet=dataclasses.replace(plan.fleet, links=links))


def with_nodes(plan, **changes):
    """`n00={...}`: other figures of that node."""
    nodes = tuple(dataclasses.replace(node, **changes.get(node.name, {})) for node in plan.fleet.nodes)
    return dataclasses.replace(plan, fleet=dataclasses.replace(plan.fleet, nodes=nodes))


def told(plan, imitation, cluster=0, index=0):
    return imitated_node(plan, plan.clusters[cluster].stages[index], SpanCosts(plan.costs, plan.workload), imitation)


def test_without_an_imitation_nothing_is_imitated():
    assert told(a_plan(), None) == ImitatedNode()
    assert told(a_plan(), Imitation(compute=False, links=False, memory=False)) == ImitatedNode()


def test_an_imitated_node_computes_on_the_processor_whatever_it_has():
    plan = with_nodes(a_plan(), n00={"device": "cuda:1"})
    assert device_of(plan, plan.clusters[0].stages[0], None) == "cuda:1"
    assert device_of(plan, plan.clusters[0].stages[0], Imitation(compute=False)) == "cuda:1"
    assert device_of(plan, plan.clusters[0].stages[0], WHOLE) == "cpu"


def test_each_part_can_be_left_out():
    plan = a_plan()
    assert told(plan, Imitation(compute=False)).pace is None
    without_links = told(plan, Imitation(links=False))
    assert (without_links.links, without_links.node) == ({}, None)
    assert without_links.pace == told(plan, WHOLE).pace
    assert told(plan, Imitation(memory=False)).memory is None


def test_a_link_is_as_fast_as_its_slowest_part_and_has_latency_and_jitter():
    plan = with_nodes(a_plan(), n00={"up_bytes_per_s": 3e6}, n01={"down_bytes_per_s": 1e6, "up_bytes_per_s": 4e6})
    first = told(plan, WHOLE)
    assert set(first.links) == {"c0.s1", "c1.s0"}  # the driver is no node
    assert first.links["c0.s1"] == LinkShape(1e6, 0.01, 0.004)
    assert first.node.up_bytes_per_s == 3e6
    assert first.node.arriving_bytes_per_s["c0.s1"] == 2e6  # the link, of 4e6 up and more down
    assert set(first.node.arriving_bytes_per_s) == {"c0.s1", "c1.s0"}


def test_speed_makes_everything_that_is_imitated_faster():
    plan = a_plan()
    plain, fast = told(plan, WHOLE), told(plan, Imitation(speed=10.0))
    for piece, seconds in dataclasses.asdict(plain.pace).items():
        assert getattr(fast.pace, piece) == pytest.approx(seconds / 10)
    for peer, link in plain.links.items():
        assert fast.links[peer] == LinkShape(link.bytes_per_s * 10, link.latency_s / 10, link.jitter_s / 10)
        assert fast.node.arriving_bytes_per_s[peer] == plain.node.arriving_bytes_per_s[peer] * 10
    assert fast.node.up_bytes_per_s == plain.node.up_bytes_per_s * 10
    assert fast.node.down_bytes_per_s == plain.node.down_bytes_per_s * 10
    assert fast.memory == plain.memory


def test_plan_simulator_and_rehearsal_agree_on_what_work_takes():
    plan = a_plan()
    spans = SpanCosts(plan.costs, plan.workload)
    for index, stage in enumerate(plan.clusters[0].stages):
        pace = told(plan, WHOLE, index=index).pace
        assert pace == work_times(plan.fleet, spans, stage)
        predicted_s = spans.flops(*stage.units) / plan.fleet.node(stage.node).flops_per_s
        assert pace.forward_s + pace.backward_s + pace.update_s / plan.workload.update_every == pytest.approx(
            predicted_s
        )
        virtual = fleet_of_plan(plan).clusters[0].stages[index]
        for piece, seconds in dataclasses.asdict(pace).items():
            assert getattr(virtual, piece) == seconds


def test_stages_of_one_host_have_equal_parts_of_its_ways_and_take_none_between_them():
    plan = with_nodes(with_links(a_plan()), n00={"host": "attic"}, n01={"host": "attic"})
    first = told(plan, WHOLE)
    up, down = (getattr(plan.fleet.node("n00"), f"{way}_bytes_per_s") for way in ("up", "down"))
    assert first.node == NodeShape(up / 2, down / 2, {"c1.s0": plan.fleet.flow_bytes_per_s("n10", "n00")})
    assert first.links["c0.s1"].bytes_per_s == plan.fleet.link("n00", "n01").bytes_per_s


def test_a_stage_s_memory_is_its_node_s():
    plan = with_nodes(a_plan(), n01={"memory_bytes": 12345})
    assert told(plan, WHOLE, index=1).memory == MemoryCap("n01", 12345, plan.workload.process_bytes)


@pytest.mark.parametrize("speed", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_speed_is_refused(speed):
    with pytest.raises(InvalidInput, match="speed: must be a finite number above 0"):
        Imitation(speed=speed)
