"""Nodes that leave a run: c0 has two stages, c1 one."""

from types import SimpleNamespace

import pytest

from ravnest.driver.cluster_starts import ClusterStarts
from ravnest.driver.departures import NodeDepartures
from ravnest.driver.instructions import RecordClusterLost
from ravnest.driver.node_requests import NodeRequest
from ravnest.driver.run_rings import RunRings
from ravnest.driver.session import run_control
from ravnest.recovery import NodesLeft, Replacements
from ravnest.stage import messages as m
from tests.support.local import setups_of, tiny_job
from tests.unit.ravnest.driver.test_cluster_starts import Processes


@pytest.fixture
def bench():
    job = tiny_job()
    setups, plan = setups_of(job, parts=(2, 1))
    control, rings = run_control(plan, job, setups, 10, 240, None, stands_by=True), RunRings(plan, setups)
    left = NodesLeft()
    replacements, told = Replacements(plan, start_s=30.0, left=left), []
    starts = ClusterStarts(replacements, Processes(plan), lambda plan: setups, lambda found, nodes: None)
    record = SimpleNamespace(notice=told.append, replacement_failed=told.append)
    leaving = NodeDepartures(starts, control, rings, record, left)
    nodes = {name: plan.cluster(name[:2]).stages[int(name[-1])].node for name in setups}
    return SimpleNamespace(**locals())


def drained(orders):
    return [order.peer for order in orders if isinstance(order.message, m.Drain)]


def test_the_clusters_on_a_node_that_leaves_hand_on_what_they_have_made(bench):
    assert drained(bench.leaving.asked(NodeRequest("leave", bench.nodes["c1.s0"]), 1.0)) == ["c1.s0"]
    assert bench.replacements.left == {bench.nodes["c1.s0"]}
    assert "c1 hands on what it has made" in bench.told[-1]
    assert bench.leaving.asked(NodeRequest("leave", bench.nodes["c0.s1"]), 2.0) == [], "nobody else would stay"
    assert "c0 goes on, and what it has made is saved" in bench.told[-1]


def test_of_one_that_runs_no_stage_it_is_said_too(bench):
    (lost,) = (each for each in bench.control.lost("c1.s0", "it died") if isinstance(each, RecordClusterLost))
    bench.starts.lost(lost, 1, 0.0)
    node = bench.nodes["c1.s0"]
    assert bench.leaving.asked(NodeRequest("leave", node), 1.0) == []
    assert bench.told == [f"node {node!r} leaves: no stage runs there, and none is started"]
    assert bench.replacements.left == {node}


@pytest.mark.parametrize(("why", "stays_out"), [("its hours are 18-22 UTC", True), ("", False)])
def test_one_whose_hours_have_ended_does_not_come_back_because_it_was_unseen_for_a_moment(bench, why, stays_out):
    node = bench.nodes["c1.s0"]
    bench.leaving.asked(NodeRequest("leave", node, why), 1.0)
    everyone = {each.name for each in bench.plan.fleet.nodes}
    bench.replacements.tick(everyone - {node}, 20.0)
    bench.replacements.tick(everyone, 40.0)
    assert (node in bench.replacements.left) is stays_out
    bench.replacements.node_back(node, 50.0)
    assert bench.replacements.left == set()


def test_one_that_ray_drains_leaves_as_one_whose_processes_were_asked_to_end(bench):
    node = bench.nodes["c1.s0"]
    assert drained(bench.leaving.asked(NodeRequest("leave", node, "Ray drains it", noticed=True), 1.0)) == ["c1.s0"]
    assert bench.told[-1] == f"node {node!r} has given notice (Ray drains it): c1 hands on what it has made, and leaves"
    everyone = {each.name for each in bench.plan.fleet.nodes}
    assert bench.left.without(everyone) == everyone - {node}
    assert bench.left.if_need_be(everyone) == everyone, "while it lives, a run that has no others may use it"
    bench.replacements.tick(everyone - {node}, 20.0)
    bench.replacements.tick(everyone, 40.0)
    assert bench.left.names == frozenset(), "it was gone, and is there again"


def test_the_notice_of_a_stage_that_stands_by_is_heard_and_that_of_one_that_is_gone_is_not(bench):
    (lost,) = (each for each in bench.control.lost("c0.s1", "it died") if isinstance(each, RecordClusterLost))
    bench.starts.lost(lost, 1, 0.0)
    bench.leaving.notice_of("c0.s1", 1.0)
    assert bench.replacements.left == set()
    bench.leaving.notice_of("c0.s0", 1.0)
    assert bench.replacements.left == {bench.nodes["c0.s0"]}


def test_all_nodes_of_a_cluster_that_lied_are_shut_out(bench):
    bench.leaving.lied("c0.s1", "its norm was 9, theirs 1")
    nodes = {bench.nodes["c0.s0"], bench.nodes["c0.s1"]}
    assert bench.replacements.left == nodes
    assert dict(bench.left.liars) == dict.fromkeys(nodes, "c0.s1: its norm was 9, theirs 1")
