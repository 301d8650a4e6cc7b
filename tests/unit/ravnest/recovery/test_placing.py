"""Where the stages of a lost cluster go. c0 has two stages, c1 one; every node holds the whole model but small ones."""

import json
import math
from dataclasses import replace

import pytest

from cluster_planner import CUDA_HOST_BYTES, Constraints, Node, Pin, SpanCosts, Spare
from ravnest.recovery.placing import START_S, WARM_S, Nodes, Place, beside, place, refused
from tests.support.commands import ROOT
from tests.support.local import setups_of, tiny_job


def plan_of(*spares: tuple[str, float, int]):
    """The plan with spare nodes: name, speed, bytes of memory."""
    _, plan = setups_of(tiny_job(), parts=(2, 1))
    nodes = [
        Node(name=name, flops_per_s=speed, memory_bytes=memory, up_bytes_per_s=1e7, down_bytes_per_s=1e7)
        for name, speed, memory in spares
    ]
    fleet = replace(plan.fleet, nodes=(*plan.fleet.nodes, *nodes))
    return replace(plan, fleet=fleet, spares=tuple(Spare(node.name, "slow") for node in nodes))


def of(plan, cluster):
    return [stage.node for stage in plan.cluster(cluster).stages]


def test_the_time_of_a_restart_is_that_of_a_recorded_run():
    recorded = ROOT / "tests/support/recorded_run/metrics.jsonl"
    lines = [json.loads(line) for line in recorded.read_text().splitlines()]
    planned = {line["cluster"]: line["at_s"] for line in lines if line["kind"] == "replanned"}
    trains = {line["cluster"]: line["at_s"] for line in lines if line["kind"] == "replaced"}
    took_s = [trains[cluster] - at_s for cluster, at_s in planned.items()]
    assert len(took_s) == 2
    assert all(0.75 < START_S / took < 1.05 for took in took_s), took_s


def test_a_stage_goes_back_to_its_node_while_that_is_alive():
    plan = plan_of(("spare", 1e12, 10**12))
    found = place(plan, "c0", Nodes(of(plan, "c0"), ["spare"]), ["c1"])
    assert isinstance(found, Place)
    assert (found.placement.plan, found.placement.how, found.reason) == (plan, "own nodes", "")
    assert found.placement.change_s > START_S
    assert found.placement.gained_per_s > 0


def test_where_no_stage_needs_a_new_process_the_start_of_one_is_not_counted():
    plan = plan_of()
    own = of(plan, "c0")
    cold, partly, there = (
        place(plan, "c0", Nodes(own, there=there), ["c1"]) for there in ((), ["c0.s1"], ["c0.s0", "c0.s1"])
    )
    assert all(isinstance(found, Place) and found.placement.how == "own nodes" for found in (cold, partly, there))
    assert [found.placement.at_once for found in (cold, partly, there)] == [False, False, True]
    assert partly.placement.change_s == cold.placement.change_s
    assert there.placement.change_s == pytest.approx(cold.placement.change_s - START_S + WARM_S)


def test_a_process_that_is_there_is_of_no_use_where_its_node_is_not():
    plan = plan_of(("spare", 1e12, 10**12))
    found = place(plan, "c0", Nodes(of(plan, "c0")[:1], ["spare"], there=["c0.s0", "c0.s1"]), ["c1"])
    assert isinstance(found, Place)
    assert (found.placement.how, found.placement.at_once) == ("spares", False)


def test_a_warm_spare_and_a_ready_process_together_need_no_start():
    plan = plan_of(("warm", 1e12, 10**12))
    found = place(plan, "c0", Nodes(of(plan, "c0"), ["warm"], {"c0.s1": "warm"}, ["c0.s0"]), ["c1"])
    assert isinstance(found, Place)
    assert (found.placement.warm, found.placement.at_once) == (("c0.s1",), True)


def test_ready_processes_on_all_nodes_of_spares_and_of_other_cuts_need_no_start():
    plan = plan_of(("spare", 1e12, 10**12))
    first, second = of(plan, "c0")
    for own, spare, how in (([first], ["spare"], "spares"), ([first], [], "other cuts")):
        nodes = [*own, *spare]
        cold, partly, ready = (place(plan, "c0", Nodes(own, spare, ready=at), ["c1"]) for at in ([], [second], nodes))
        assert all(isinstance(found, Place) and found.placement.how == how for found in (cold, partly, ready))
        assert [found.placement.at_once for found in (cold, partly, ready)] == [False, False, True]
        assert partly.placement.change_s == cold.placement.change_s
        assert ready.placement.change_s == pytest.approx(cold.placement.change_s - START_S + WARM_S)


def test_a_ready_process_is_beside_stages_whose_nodes_have_the_memory():
    plan = plan_of()
    assert beside(plan) == {"c0.s0", "c0.s1", "c1.s0"}
    cluster, (_, stage) = plan.cluster("c0"), plan.cluster("c0").stages
    needed = SpanCosts(plan.costs, plan.workload).stage_memory_bytes(*stage.units, (1, 2), cluster.window)
    node = stage.node
    for extra, found in ((0, False), (plan.workload.process_bytes - 1, False), (plan.workload.process_bytes, True)):
        nodes = [replace(each, memory_bytes=needed + extra) if each.name == node else each for each in plan.fleet.nodes]
        assert ("c0.s1" in beside(replace(plan, fleet=replace(plan.fleet, nodes=tuple(nodes))))) == found
    devices = tuple(replace(each, memory_bytes=needed, device="cuda") for each in plan.fleet.nodes)
    assert "c0.s1" in beside(replace(plan, fleet=replace(plan.fleet, nodes=devices)))
    full = tuple(replace(each, host_memory_bytes=CUDA_HOST_BYTES) for each in devices)
    assert beside(replace(plan, fleet=replace(plan.fleet, nodes=full))) == set()


def test_the_fastest_spare_that_can_hold_it_takes_the_place_of_a_dead_node():
    plan = plan_of(("small", 1e15, 10), ("slow", 1e9, 10**12), ("fast", 1e12, 10**12))
    first, gone = of(plan, "c0")
    found = place(plan, "c0", Nodes([first], ["small", "slow", "fast"]), ["c1"])
    assert isinstance(found, Place)
    assert found.placement.how == "spares"
    assert found.reason == f"node {gone!r} of c0.s1 is not there"
    assert of(found.placement.plan, "c0") == [first, "fast"]
    assert [spare.node for spare in found.placement.plan.spares] == [gone, "small", "slow"]
    assert found.placement.plan.cluster("c1") == plan.cluster("c1")


def constrained(plan, **demands):
    return replace(plan, fleet=replace(plan.fleet, constraints=Constraints(**demands)))


@pytest.mark.parametrize("demand", ["forbid", "apart", "stage"])
def test_a_spare_that_constraints_keep_out_of_the_cluster_does_not_take_a_place_in_it(demand):
    plan = plan_of(("fast", 1e12, 10**12), ("slow", 1e9, 10**12))
    first, _ = of(plan, "c0")
    demands = {
        "forbid": {"forbid": ((first, "fast"),)},
        "apart": {"groups": (("home", (first,)), ("away", ("fast",))), "apart": (("home", "away"),)},
        "stage": {"pins": (Pin("fast", stage=0),)},
    }
    plan = constrained(plan, **demands[demand])
    found = place(plan, "c0", Nodes([first], ["fast", "slow"]), ["c1"])
    assert isinstance(found, Place)
    assert of(found.placement.plan, "c0") == [first, "slow"]
    found = place(plan, "c0", Nodes([first], ["fast"]), ["c1"])
    assert isinstance(found, Place)
    assert found.placement.how == "other cuts"
    assert of(found.placement.plan, "c0") in ([first], ["fast", first], ["fast"] if demand == "stage" else [])
    assert "no spare can hold that stage, as constraints have it" in found.reason
    warm = place(plan, "c0", Nodes([first], ["fast", "slow"], {"c0.s1": "fast"}), ["c1"])
    assert isinstance(warm, Place)
    assert warm.placement.warm == ()
    assert of(warm.placement.plan, "c0") == [first, "slow"]


def test_of_two_warm_spares_that_constraints_keep_apart_one_takes_a_place():
    plan = constrained(plan_of(("a", 1e12, 10**12), ("b", 1e12, 10**12)), forbid=(("a", "b"),))
    own = of(plan, "c0")
    found = place(plan, "c0", Nodes(own, ["a", "b"], {"c0.s0": "a", "c0.s1": "b"}), ["c1"])
    assert isinstance(found, Place)
    assert (found.placement.warm, of(found.placement.plan, "c0")) == (("c0.s0",), ["a", own[1]])


def test_a_warm_spare_goes_before_a_lost_stage_s_own_node_and_before_faster_spares():
    plan = plan_of(("warm", 1e9, 10**12), ("fast", 1e15, 10**12))
    first, second = of(plan, "c0")
    found = place(plan, "c0", Nodes([first, second], ["warm", "fast"], {"c0.s1": "warm"}), ["c1"])
    assert isinstance(found, Place)
    assert (found.placement.how, found.placement.warm) == ("warm spares", ("c0.s1",))
    assert found.placement.change_s == WARM_S
    assert found.reason == "'warm' is a warm spare of c0.s1"
    assert of(found.placement.plan, "c0") == [first, "warm"]


def test_beside_a_warm_spare_other_lost_stages_go_to_cold_ones_but_not_to_a_warm_one_s_node():
    plan = plan_of(("warm", 1e15, 10**12), ("cold", 1e9, 10**12))
    _, second = of(plan, "c0")
    found = place(plan, "c0", Nodes([second], ["warm", "cold"], {"c0.s1": "warm"}), ["c1"])
    assert isinstance(found, Place)
    assert (found.placement.how, found.placement.warm) == ("spares", ("c0.s1",))
    assert of(found.placement.plan, "c0") == ["cold", "warm"]
    assert found.placement.change_s > START_S


def test_where_no_spare_can_hold_it_the_cluster_is_cut_anew_for_the_nodes_that_are_left():
    plan = plan_of(("small", 1e15, 10))
    first, gone = of(plan, "c0")
    found = place(plan, "c0", Nodes([first], ["small"]), ["c1"])
    assert isinstance(found, Place)
    assert found.placement.how == "other cuts"
    assert found.reason == f"node {gone!r} of c0.s1 is not there, and no spare can hold that stage"
    assert [stage.units for stage in found.placement.plan.cluster("c0").stages] == [(0, len(plan.costs.units))]
    assert [ring.members for ring in found.placement.plan.rings] == [
        tuple((name, 0) for name, _ in ring.members) for ring in plan.rings
    ]


def test_where_nothing_can_hold_it_the_reason_names_the_node_and_the_stage():
    plan = plan_of(("small", 1e15, 10))
    gone = plan.cluster("c1").stages[0].node
    assert place(plan, "c1", Nodes([], ["small"]), ["c0"]) == (
        f"node {gone!r} of c1.s0 is not there, and no spare can hold that stage,"
        " and the nodes that are left cannot hold the model"
    )


def test_a_cluster_that_was_cut_for_fewer_nodes_is_cut_for_more_where_that_makes_more_samples():
    plan = plan_of(("fast", 1e12, 10**12))
    first, _ = of(plan, "c0")
    one = place(plan, "c0", Nodes([first]), ["c1"])
    assert isinstance(one, Place)
    kept = place(one.placement.plan, "c0", Nodes([first], ["fast"]), ["c1"])
    assert isinstance(kept, Place)
    assert kept.placement.how == "own nodes"
    found = place(one.placement.plan, "c0", Nodes([first], ["fast"]), ["c1"], anew=True)
    assert isinstance(found, Place)
    assert "fast" in of(found.placement.plan, "c0")
    assert found.reason == "more nodes are there than before"
    assert found.placement.gained_per_s > one.placement.gained_per_s


@pytest.mark.parametrize(("more_s", "pays"), [(-1.0, False), (0.0, False), (1e4, True), (math.inf, True)])
def test_a_change_pays_where_the_cluster_comes_to_make_an_update(more_s, pays):
    plan = plan_of()
    found = place(plan, "c0", Nodes(of(plan, "c0")), ["c1"])
    assert isinstance(found, Place)
    said = refused(found.placement, found.placement.change_s + more_s)
    assert (said is None) == pays
    if said is not None:
        assert "the run ends in" in said


def test_a_node_takes_one_place_though_it_is_the_warm_spare_of_two_lost_stages():
    plan = plan_of(("warm", 1e12, 10**12), ("cold", 1e9, 10**12))
    warm = {"c0.s0": "warm", "c0.s1": "warm"}
    found = place(plan, "c0", Nodes([], ["warm", "cold"], warm), ["c1"])
    assert isinstance(found, Place)
    assert found.placement.warm == ("c0.s0",)
    assert of(found.placement.plan, "c0") == ["warm", "cold"]
