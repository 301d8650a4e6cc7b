"""When and where a lost cluster is started anew. c0 has two stages, c1 one; a spare may be there."""

import itertools
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_planner import Fleet, Node, SpanCosts, Spare
from ravnest.recovery.joiners import with_nodes
from ravnest.recovery.nodes_left import NodesLeft
from ravnest.recovery.orders import MoveCluster, Replaced, SharedOut, StartCluster, TryFailed
from ravnest.recovery.placing import slows_others
from ravnest.recovery.replacing import FIRST_WAIT_S, HANDOVER_S, LEAVES_S, LOOK_AGAIN_S, Replacements
from ravnest.recovery.starts import AT_ONE_NODE, MOST_STARTS, WINDOW_S
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


def test_a_lost_cluster_is_started_after_a_moment_and_trains_again():
    plan = plan_of()
    machine = Replacements(plan, start_s=START_S)
    machine.lost("c0", 24, 100.0)
    assert not machine.due(100.0)
    assert machine.tick(everyone(plan), 100.0) == []
    (order,) = machine.tick(everyone(plan), 100.0 + FIRST_WAIT_S)
    assert isinstance(order, StartCluster)
    assert (order.cluster, order.plan, order.placement.how, order.reason) == ("c0", plan, "own nodes", "")
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


def lost_again(machine, plan, times):
    """c1 is lost by its stage, and started again, so many times in a row; returns the last order."""
    order = None
    for number in range(times):
        now_s = 20.0 * number
        machine.lost("c1", 0, now_s, stage="c1.s0")
        (order,) = machine.tick(everyone(plan), now_s + FIRST_WAIT_S)
        assert isinstance(order, StartCluster)
        machine.listening("c1", now_s + FIRST_WAIT_S)
        machine.trains("c1", now_s + FIRST_WAIT_S)
    return order


def test_a_node_that_ends_its_cluster_again_and_again_is_done_without_where_that_is_possible():
    plan = plan_of(("spare", 1e9, 10**12))
    node, left = plan.cluster("c1").stages[0].node, NodesLeft()
    machine = Replacements(plan, start_s=START_S, left=left)
    order = lost_again(machine, plan, AT_ONE_NODE)
    assert [stage.node for stage in order.plan.cluster("c1").stages] == ["spare"]
    assert order.reason == f"its stage on {node!r} was lost {AT_ONE_NODE} times in a row: nothing is started there"
    assert left.without(everyone(plan)) == everyone(plan) - {node}
    assert left.if_need_be(everyone(plan)) == everyone(plan)
    assert machine.situation(everyone(plan), [], 100.0, math.inf).nodes == everyone(plan) - {node}
    machine.node_back(node, 200.0)
    assert left.without(everyone(plan)) == everyone(plan), "somebody has mended it"


def test_a_node_that_nothing_stands_in_for_is_tried_as_often_as_before():
    plan = plan_of()
    machine = Replacements(plan, start_s=START_S, left=(left := NodesLeft()))
    lost_again(machine, plan, MOST_STARTS)
    machine.lost("c1", 0, 150.0, stage="c1.s0")
    (said,) = machine.tick(everyone(plan), 160.0)
    assert isinstance(said, TryFailed)
    assert said.again_s is None
    assert not left.names


def test_losses_at_several_nodes_tell_against_none_of_them():
    plan = plan_of(("spare", 1e9, 10**12))
    machine = Replacements(plan, start_s=START_S, left=(left := NodesLeft()))
    for number in range(MOST_STARTS - 1):
        now_s = 20.0 * number
        machine.lost("c0", 0, now_s, stage=f"c0.s{number % 2}")
        (order,) = machine.tick(everyone(plan), now_s + FIRST_WAIT_S)
        assert order.placement.how == "own nodes"
        machine.failed("c0", "it died", now_s + FIRST_WAIT_S)
    assert not left.names


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


def test_one_whose_work_is_averaged_between_its_losses_is_always_replaced():
    plan = plan_of()
    machine = Replacements(plan, start_s=START_S)
    for number in range(3 * MOST_STARTS):
        now_s = 20.0 * number
        machine.lost("c1", 0, now_s)
        (order,) = machine.tick(everyone(plan), now_s + FIRST_WAIT_S)
        assert isinstance(order, StartCluster)
        machine.listening("c1", now_s + FIRST_WAIT_S)
        machine.trains("c1", now_s + FIRST_WAIT_S)
        machine.averaged({"c0": 10 * number, "c1": number})
        machine.averaged({"c0": 10 * number, "c1": number + 1})


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


def test_that_a_node_which_left_was_switched_off_is_noticed_while_nobody_is_away():
    plan = plan_of()
    node = plan.cluster("c1").stages[0].node
    machine = Replacements(plan, start_s=START_S)
    machine.node_left(node)
    assert machine.due(100.0)
    machine.tick(everyone(plan), 100.0)
    assert not machine.due(101.0)
    assert machine.due(100.0 + LOOK_AGAIN_S)
    machine.tick(everyone(plan) - {node}, 100.0 + LOOK_AGAIN_S)
    assert not machine.due(1000.0), "it is off, so that it will be back when it is there again"
    machine.lost("c1", 0, 1000.0)
    (order,) = machine.tick(everyone(plan), 1000.0 + FIRST_WAIT_S)
    assert isinstance(order, StartCluster)


def small(plan, *names):
    """The plan with too little memory in these nodes for more than half of the model."""
    spans, count = SpanCosts(plan.costs, plan.workload), len(plan.costs.units)
    whole = min(spans.memory_bytes(0, count, 1, recomputes=each) for each in (False, True))
    nodes = tuple(replace(each, memory_bytes=whole - 1) if each.name in names else each for each in plan.fleet.nodes)
    return replace(plan, fleet=replace(plan.fleet, nodes=nodes))


def test_the_nodes_of_a_cluster_that_cannot_be_made_are_spares_of_the_others():
    plan = plan_of()
    (a, b), (c,) = ([stage.node for stage in plan.cluster(name).stages] for name in ("c0", "c1"))
    plan = small(plan, a)
    machine = Replacements(plan, start_s=START_S)
    machine.lost("c0", 0, 0.0)
    failed, shared = machine.tick({a, c}, 10.0)
    assert isinstance(failed, TryFailed)
    assert shared == SharedOut("c0", (a,), failed.reason)
    assert machine.tick({a, c}, 10.0 + LOOK_AGAIN_S) == [], "both were said"
    (order,) = machine.tick({a, b, c}, 10.0 + 2 * LOOK_AGAIN_S)
    assert isinstance(order, StartCluster)
    assert order.placement.how == "own nodes"


def test_another_cluster_takes_nodes_that_were_shared_out_and_the_first_does_without_them():
    plan = plan_of()
    (a, b), (c,) = ([stage.node for stage in plan.cluster(name).stages] for name in ("c0", "c1"))
    plan = small(plan, b)
    machine = Replacements(plan, start_s=START_S)
    machine.lost("c0", 0, 0.0)
    assert [type(each) for each in machine.tick({b, c}, 10.0)] == [TryFailed, SharedOut]
    machine.lost("c1", 0, 11.0)
    (order,) = machine.tick({a, b}, 15.0)
    assert isinstance(order, StartCluster)
    assert order.cluster == "c1"
    assert {stage.node for stage in order.plan.cluster("c1").stages} <= {a, b}
    assert "c0" in machine


def computing_plan(average_every: int):
    """Two clusters of two nodes each, in which computing takes the time."""
    _, plan = setups_of(tiny_job(average_every=average_every), parts=(2, 2))
    nodes = tuple(replace(node, flops_per_s=1e6, up_bytes_per_s=1e9, down_bytes_per_s=1e9) for node in plan.fleet.nodes)
    return replace(plan, fleet=replace(plan.fleet, nodes=nodes))


def test_a_cluster_for_which_the_others_would_wait_stays_out_and_its_nodes_are_spares_until_all_are_back():
    plan = computing_plan(24)  # a round is an update of each cluster
    kept, gone = (stage.node for stage in plan.cluster("c0").stages)
    machine = Replacements(plan, start_s=START_S)
    machine.lost("c0", 0, 0.0)
    failed, shared = machine.tick(everyone(plan) - {gone}, 10.0)
    assert isinstance(failed, TryFailed)
    assert "the others would wait for it" in failed.reason
    assert shared == SharedOut("c0", (kept,), failed.reason)
    assert machine.tick(everyone(plan) - {gone}, 10.0 + LOOK_AGAIN_S) == []
    machine.node_back(gone, 40.0)
    (order,) = machine.tick(everyone(plan), 40.0)
    assert isinstance(order, StartCluster)
    assert order.placement.how == "own nodes"


def test_a_cluster_that_is_slower_comes_back_where_rounds_are_long_enough_or_nobody_else_trains():
    plan = computing_plan(240)
    gone = plan.cluster("c0").stages[1].node
    machine = Replacements(plan, start_s=START_S)
    machine.lost("c0", 0, 0.0)
    (order,) = machine.tick(everyone(plan) - {gone}, 10.0)
    assert isinstance(order, StartCluster)
    assert order.placement.how == "other cuts"
    assert slows_others(order.placement, plan.cluster("c0"), []) is None


def test_what_does_not_pay_is_not_started_until_it_does():
    plan = plan_of()
    machine = Replacements(plan, start_s=START_S)
    machine.lost("c1", 0, 0.0)
    (said,) = machine.tick(everyone(plan), 10.0, rest_s=1.0)
    assert isinstance(said, TryFailed)
    assert "the run ends in 1.0 s" in said.reason
    (order,) = machine.tick(everyone(plan), 10.0 + LOOK_AGAIN_S, rest_s=1e5)
    assert isinstance(order, StartCluster)


def slow_machines(plan):
    """The plan with machines so slow that neither links nor averaging limit anybody."""
    nodes = tuple(replace(each, flops_per_s=1e6) for each in plan.fleet.nodes)
    return replace(plan, fleet=replace(plan.fleet, nodes=nodes))


def test_a_cluster_that_was_cut_for_fewer_nodes_is_planned_anew_when_one_is_back():
    plan = slow_machines(plan_of())
    _, b = (stage.node for stage in plan.cluster("c0").stages)
    machine = Replacements(plan, start_s=START_S)
    machine.lost("c0", 0, 0.0)
    (order,) = machine.tick(everyone(plan) - {b}, 10.0)
    assert isinstance(order, StartCluster)
    assert order.placement.how == "other cuts"
    machine.listening("c0", 20.0)
    machine.trains("c0", 30.0)
    assert machine.tick(everyone(plan) - {b}, 30.0 + LOOK_AGAIN_S) == [], "there is nothing better yet"
    assert not machine.due(1000.0)
    machine.node_back(b, 1000.0)
    assert machine.tick(everyone(plan), 1000.0 + LOOK_AGAIN_S, rest_s=15.0) == [], "it does not pay any more"
    machine.node_back(b, 2000.0)
    (move,) = machine.tick(everyone(plan), 2000.0 + LOOK_AGAIN_S)
    assert isinstance(move, MoveCluster)
    assert repr(b) in move.reason
    machine.lost(move.cluster, 0, 2020.0)
    (order,) = machine.tick(everyone(plan), 2020.0 + FIRST_WAIT_S)
    assert isinstance(order, StartCluster)
    assert b in {stage.node for stage in order.plan.cluster(move.cluster).stages}
    assert order.reason == move.reason


def test_one_that_does_not_leave_after_all_may_be_told_again():
    plan = plan_of()
    (a, _), (c,) = ([stage.node for stage in plan.cluster(name).stages] for name in ("c0", "c1"))
    machine = Replacements(plan, start_s=START_S)
    machine.node_slow(a, 8.0, 0.0)
    (move,) = machine.tick(everyone(plan), 0.0)
    assert isinstance(move, MoveCluster)
    assert "8.0 times as long" in move.reason
    assert machine.tick(everyone(plan), LOOK_AGAIN_S) == []
    assert [type(each) for each in machine.tick(everyone(plan), LEAVES_S)] == [MoveCluster]
    machine.node_slow(a, 1.0, LEAVES_S)
    machine.node_slow(c, 1.0, LEAVES_S)
    assert machine.tick(everyone(plan), 3 * LEAVES_S) == []


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_in_any_history_no_node_runs_two_stages_and_every_cluster_holds_the_model(data):
    """Losses, failures and answers come in any order, some twice, and nodes come and go."""
    plan = small(plan_of(("s0", 1e12, 10**12), ("s1", 1e9, 10**12)), "s1")
    names, now_s = [cluster.name for cluster in plan.clusters], 0.0
    machine = Replacements(plan, start_s=START_S)
    runs = set(names)
    for _ in range(data.draw(st.integers(1, 25))):
        now_s += data.draw(st.sampled_from([0.0, 3.0, 11.0, 70.0]))
        name = data.draw(st.sampled_from(names))
        match data.draw(st.sampled_from(["lose", "tick", "tick", "fail", "listen", "train", "leave", "back", "slow"])):
            case "lose" if name not in machine:
                machine.lost(name, 0, now_s)
                runs.discard(name)
            case "fail":
                if any(isinstance(each, TryFailed) for each in machine.failed(name, "it died", now_s)):
                    runs.discard(name)
            case "listen" if name in machine.starting:
                machine.listening(name, now_s)
            case "train" if name in machine and name in runs and name not in machine.starting:
                machine.trains(name, now_s)
            case "leave":
                machine.node_left(data.draw(st.sampled_from(sorted(everyone(plan)))))
            case "back":
                machine.node_back(data.draw(st.sampled_from(sorted(everyone(plan)))), now_s)
            case "slow":
                machine.node_slow(data.draw(st.sampled_from(sorted(everyone(plan)))), 5.0, now_s)
            case "tick":
                alive = set(data.draw(st.sets(st.sampled_from(sorted(everyone(plan))))))
                for order in machine.tick(alive, now_s, data.draw(st.sampled_from([5.0, 1e4, math.inf]))):
                    if isinstance(order, TryFailed):
                        runs.discard(order.cluster)
                    if isinstance(order, MoveCluster):
                        assert order.cluster in runs
                        assert len(runs) > 1
                        machine.lost(order.cluster, 0, now_s)
                        runs.discard(order.cluster)
                    if isinstance(order, StartCluster):
                        runs.add(order.cluster)
                        assert {stage.node for stage in order.plan.cluster(order.cluster).stages} <= alive
        held = [stage.node for each in runs for stage in machine.plan.cluster(each).stages]
        assert len(held) == len(set(held))
        for cluster in machine.plan.clusters:
            spans = [stage.units for stage in cluster.stages]
            assert [spans[0][0], spans[-1][1]] == [0, len(plan.costs.units)]
            assert all(one[1] == other[0] for one, other in itertools.pairwise(spans))


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
                starts.append((now_s, {stage.node for stage in order.plan.cluster("c0").stages}))
                against = [each for at_s, each in starts if now_s - at_s < WINDOW_S]
                assert sum(each <= alive for each in against) <= MOST_STARTS
                assert {stage.node for stage in order.plan.cluster("c0").stages} <= alive
        if machine.starting and chance.random() < 0.5:
            machine.listening("c0", now_s)
        elif chance.random() < 0.3:
            machine.failed("c0", "it died", now_s)
        if "c0" in machine and not machine.starting and chance.random() < 0.02:
            machine.trains("c0", now_s)
            machine.lost("c0", 0, now_s)


def test_twenty_nodes_that_come_at_once_make_further_clusters_one_after_the_other_and_their_losses_are_replaced():
    plan = slow_machines(plan_of())
    machine, now_s = Replacements(plan, start_s=START_S, further=["j0", "j1"]), 0.0
    new = [replace(plan.fleet.nodes[0], name=f"new{number}") for number in range(20)]
    for node in new:
        machine.node_joined(with_nodes(machine.plan, Fleet((node,)), [node.name]), node.name, now_s)
    begun, moved = [], 0
    for _ in range(60):
        now_s += LOOK_AGAIN_S
        for order in machine.tick(everyone(machine.plan), now_s):
            if isinstance(order, MoveCluster):
                machine.lost(order.cluster, 0, now_s)
                moved += 1
            elif isinstance(order, StartCluster):
                begun.append((order.cluster, order.placement.how))
                machine.listening(order.cluster, now_s)
                trains = machine.trains(order.cluster, now_s)
                assert trains.new == (order.placement.how == "nodes that came"), "the others had been lost, or moved"
        held = [stage.node for cluster in machine.plan.clusters for stage in cluster.stages]
        assert len(held) == len(set(held))
    assert ("j0", "nodes that came") in begun
    assert [cluster for cluster, how in begun if how == "nodes that came"] == ["j0", "j1"][
        : len(machine.plan.clusters) - 2
    ]
    machine.lost("j0", 12, now_s)
    (order,) = machine.tick(everyone(machine.plan), now_s + FIRST_WAIT_S)
    assert isinstance(order, StartCluster)
    assert (order.cluster, order.placement.how) == ("j0", "own nodes")


def test_a_further_cluster_does_not_wait_for_one_that_is_being_started():
    plan = slow_machines(plan_of())
    machine = Replacements(plan, start_s=START_S, further=["j0"])
    machine.lost("c1", 0, 0.0)
    assert machine.situation(everyone(plan), (), 0.0, 1e6).making is None, "what becomes of c1 is not known"
    node = replace(plan.fleet.nodes[0], name="new", flops_per_s=1e8)
    machine.node_joined(with_nodes(plan, Fleet((node,)), ["new"]), "new", 0.0)
    (order,) = machine.tick(everyone(machine.plan), FIRST_WAIT_S)
    assert isinstance(order, StartCluster)
    assert order.cluster == "c1"
    assert machine.situation(everyone(plan), (), 0.0, 1e6).making == {"c0", "c1"}
    assert machine.situation(everyone(plan), ("c0",), 0.0, 1e6).making is None
    assert machine.tick(everyone(machine.plan), LOOK_AGAIN_S) == []
    (order,) = machine.tick(everyone(machine.plan), LOOK_AGAIN_S)
    assert isinstance(order, StartCluster)
    assert order.cluster == "j0"
    assert machine.starting == ["c1", "j0"]


def test_a_further_cluster_whose_nodes_are_gone_before_it_starts_is_forgotten():
    plan = slow_machines(plan_of())
    machine = Replacements(plan, start_s=START_S, further=["j0"])
    node = replace(plan.fleet.nodes[0], name="new", flops_per_s=1e8)
    machine.node_joined(with_nodes(plan, Fleet((node,)), ["new"]), "new", 0.0)
    machine.tick(everyone(machine.plan), LOOK_AGAIN_S)
    assert machine.tick(everyone(plan), LOOK_AGAIN_S) == []
    assert "j0" not in machine
    assert machine.plan.clusters == plan.clusters
