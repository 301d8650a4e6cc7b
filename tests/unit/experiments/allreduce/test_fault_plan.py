"""What scenarios are drawn: no kind of fault is tried on one way of averaging only."""

from dataclasses import replace

import pytest

from experiments.allreduce.fault_plan import CHUNK_ELEMENTS, KINDS, WAYS, chunks_sent, scenario
from experiments.allreduce.faults import QUICK, SCENARIOS, WIRES, plans
from ring_allreduce.group import group_ring


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_each_kind_goes_each_way_with_each_wire(seed):
    chosen = plans(SCENARIOS, seed)
    for kind in KINDS:
        wires = ("exact",) if kind == "other dtype" else WIRES
        drawn = {(plan.way, plan.wire) for plan in chosen if plan.fault == kind}
        assert drawn == {(way, wire) for way in WAYS for wire in wires}, kind
    ring = sum(plan.way == "ring" for plan in chosen)
    assert ring == pytest.approx(len(chosen) / 2, rel=0.05)


def test_the_quick_ones_go_both_ways():
    assert {scenario(fault, 0, wires=WIRES).way for fault in QUICK} == set(WAYS)


def test_a_scenario_follows_from_its_seed():
    assert scenario("killed", 5, wires=WIRES) == scenario("killed", 5, wires=WIRES)


def test_chunks_of_each_way():
    plan = replace(scenario("killed", 0), members=4, elements=4 * CHUNK_ELEMENTS + 1)
    assert chunks_sent(replace(plan, way="direct")) == 3 * 5
    assert chunks_sent(replace(plan, way="ring")) == 2 * 3 * 1


def test_what_members_of_scenarios_replace_is_where_they_replace_it():
    assert {"chunk_elements_for", "direct_is_faster"} <= vars(group_ring).keys()
