"""When and where a lost cluster is started anew. c0 has two stages, c1 one; a spare may be there."""

import random
from dataclasses import replace

import pytest

from cluster_planner import Node, Spare
from ravnest.recovery.replacing import (
    FIRST_WAIT_S,
    HANDOVER_S,
    LOOK_AGAIN_S,
    MOST_STARTS,
    WINDOW_S,
    Replaced,
    Replacements,
    StartCluster,
    TryFailed,
    place,
)
from tests.support.local import setups_of, tiny_job

START_S = 30.0


def plan_of(*spares: tuple[str, float, int]):
    """The plan with spare nodes: name, speed, bytes of memory."""
    _, plan = setups_of(tiny_job(), parts=(2, 1))
    nodes = [
        Node(name=name, flops_per_s=speed, memory_bytes=memory, up_bytes_per_s=1e7, down_bytes_per_s=1e7)
        for name, speed, memory in spares
    ]
    fleet = replace(plan.fleet, nodes=(*plan.fleet.nodes, *nodes))
    return replace(plan, fleet=fleet, spares=tuple(Spare(node.name, "slow") for node in nodes))


def everyone(plan):
    return {node.name for node in plan.fleet.nodes}


def test_a_stage_goes_back_to_its_node_while_that_is_alive():
    plan = plan_of(("spare", 1e12, 10**12))
    assert place(plan, "c0", everyone(plan)) == plan


def test_the_fastest_spare_that_can_hold_it_takes_the_place_of_a_dead_node():
    plan = plan_of(("small", 1e15, 10), ("slow", 1e9, 10**12), ("fast", 1e12, 10**12), ("dead", 1e15, 10**12))
    gone = plan.cluster("c0").stages[1].node
    placed = place(plan, "c0", everyone(plan) - {gone, "dead"})
    assert [stage.node for stage in placed.cluster("c0").stages] == [plan.cluster("c0").stages[0].node, "fast"]
    assert [spare.node for spare in placed.spares] == ["small", "slow", "dead"]
    assert placed.cluster("c1") == plan.cluster("c1")


def test_where_nothing_can_hold_it_the_reason_names_the_node_and_the_stage():
    plan = plan_of(("small", 1e15, 10))
    gone = plan.cluster("c1").stages[0].node
    assert place(plan, "c1", everyone(plan) - {gone}) == (
        f"node {gone!r} of c1.s0 is not there, and no spare can hold that stage"
    )


def test_a_lost_cluster_is_started_after_a_moment_and_trains_again():
    plan = plan_of()
    machine = Replacements(plan, start_s=START_S)
    machine.lost("c0", 24, 100.0)
    assert not machine.due(100.0)
    assert machine.tick(everyone(plan), 100.0) == []
    (order,) = machine.tick(everyone(plan), 100.0 + FIRST_WAIT_S)
    assert order == StartCluster("c0", plan, {})
    assert machine.starting == ["c0"]
    machine.listening("c0", 110.0)
    assert machine.starting == []
    nodes = {f"c0.s{i}": stage.node for i, stage in enumerate(plan.cluster("c0").stages)}
    assert machine.trains("c0", 117.0) == Replaced("c0", nodes, 17.0, 24)
    assert "c0" not in machine


def test_a_cluster_waits_for_a_node_that_nothing_can_stand_in_for_and_says_so_once():
    plan = plan_of()
    gone = plan.cluster("c1").stages[0].node
    machine = Replacements(plan, start_s=START_S)
    machine.lost("c1", 0, 0.0)
    (said,) = machine.tick(everyone(plan) - {gone}, 10.0)
    assert isinstance(said, TryFailed)
    assert said.again_s == LOOK_AGAIN_S
    assert machine.tick(everyone(plan) - {gone}, 10.0 + LOOK_AGAIN_S) == []
    (order,) = machine.tick(everyone(plan), 10.0 + 2 * LOOK_AGAIN_S)
    assert isinstance(order, StartCluster)


def test_processes_that_are_not_ready_in_time_are_a_failed_try():
    plan = plan_of()
    machine = Replacements(plan, start_s=START_S)
    machine.lost("c1", 0, 0.0)
    machine.tick(everyone(plan), 10.0)
    assert machine.tick(everyone(plan), 10.0 + START_S) == []
    (said,) = machine.tick(everyone(plan), 10.1 + START_S)
    assert (said.reason, said.again_s) == ("its processes were not ready after 30 s", 2 * FIRST_WAIT_S)


def test_a_cluster_may_wait_long_for_a_round_and_is_given_up_when_its_state_stops_arriving():
    plan = plan_of()
    machine = Replacements(plan, start_s=START_S)
    machine.lost("c1", 0, 0.0)
    machine.tick(everyone(plan), 10.0)
    machine.listening("c1", 20.0)
    assert not machine.due(100_000.0)
    machine.handing("c1", 100_000.0)
    machine.handing("c1", 100_000.0 + HANDOVER_S)
    assert machine.tick(everyone(plan), 100_000.0 + 2 * HANDOVER_S) == []
    (said,) = machine.tick(everyone(plan), 100_001.0 + 2 * HANDOVER_S)
    assert said.reason == "no more of its state has arrived for 300 s"
    machine.handing("c1", 200_000.0)
    assert machine.due(200_000.0), "what still arrives is of no use"


def test_a_cluster_that_always_dies_stays_out_for_good():
    plan = plan_of()
    machine = Replacements(plan, start_s=START_S)
    machine.lost("c1", 0, 0.0)
    said, now_s = [], 0.0
    for _ in range(1000):
        now_s += 1.0
        for order in machine.tick(everyone(plan), now_s):
            assert isinstance(order, StartCluster)
            said += machine.failed("c1", "it died", now_s)
    assert [each.again_s is None for each in said] == [False] * (MOST_STARTS - 1) + [True]
    assert not machine.due(10 * now_s)


def test_one_that_trains_for_a_while_between_its_losses_is_always_replaced():
    plan = plan_of()
    machine, now_s = Replacements(plan, start_s=START_S), 0.0
    for _ in range(3 * MOST_STARTS):
        machine.lost("c1", 0, now_s)
        (order,) = machine.tick(everyone(plan), now_s + FIRST_WAIT_S)
        assert isinstance(order, StartCluster)
        machine.listening("c1", now_s + FIRST_WAIT_S)
        machine.trains("c1", now_s + FIRST_WAIT_S)
        now_s += 1.1 * WINDOW_S / (MOST_STARTS - 1)


def test_nothing_is_started_on_a_node_that_left_before_it_is_back():
    plan = plan_of()
    node = plan.cluster("c1").stages[0].node
    machine = Replacements(plan, start_s=START_S)
    machine.node_left(node)
    machine.lost("c1", 0, 0.0)
    (said,) = machine.tick(everyone(plan), 10.0)
    assert isinstance(said, TryFailed)
    machine.node_back(node, 12.0)
    (order,) = machine.tick(everyone(plan), 12.0)
    assert isinstance(order, StartCluster)


def test_a_node_that_left_and_was_switched_off_in_between_is_back_by_itself():
    plan = plan_of()
    node = plan.cluster("c1").stages[0].node
    machine = Replacements(plan, start_s=START_S)
    machine.node_left(node)
    machine.lost("c1", 0, 0.0)
    machine.tick(everyone(plan) - {node}, 10.0)
    (order,) = machine.tick(everyone(plan), 10.0 + LOOK_AGAIN_S)
    assert isinstance(order, StartCluster)


@pytest.mark.parametrize("seed", range(20))
def test_every_history_ends_with_the_cluster_in_the_run_out_of_it_or_waiting_for_a_node(seed):
    chance = random.Random(seed)
    plan = plan_of(("spare", 1e12, 10**12))
    machine, now_s, starts = Replacements(plan, start_s=START_S), 0.0, []
    machine.lost("c0", 0, now_s)
    for _ in range(300):
        now_s += chance.random() * 20
        alive = {name for name in everyone(plan) if chance.random() < 0.9}
        orders = machine.tick(alive, now_s)
        for order in orders:
            if isinstance(order, StartCluster):
                starts.append(now_s)
                assert {stage.node for stage in order.plan.cluster("c0").stages} <= alive
        if machine.starting and chance.random() < 0.5:
            machine.listening("c0", now_s)
        elif chance.random() < 0.3:
            machine.failed("c0", "it died", now_s)
        if "c0" in machine and not machine.starting and chance.random() < 0.02:
            machine.trains("c0", now_s)
            machine.lost("c0", 0, now_s)
    for start in starts:
        assert sum(start <= each < start + WINDOW_S for each in starts) <= MOST_STARTS
