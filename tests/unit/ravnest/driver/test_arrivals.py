"""Nodes that come to a run: c0 has two stages, c1 one, and all of their nodes are in the plan."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from cluster_planner import Fleet, Link, Node
from ravnest.driver.arrivals import NodeArrivals
from ravnest.driver.node_requests import NodeRequest
from ravnest.recovery import Replacements, StartCluster
from tests.support.local import setups_of, tiny_job

NEW = Node(name="new", flops_per_s=2e9, memory_bytes=10**10, up_bytes_per_s=1e6, down_bytes_per_s=2e6)


class Record:
    def __init__(self):
        self.told, self.notices = [], []

    def happened(self, event):
        self.told.append((event.node, event.known))

    def notice(self, text):
        self.notices.append(text)


@pytest.fixture
def bench():
    _, plan = setups_of(tiny_job(), parts=(2, 1))
    replacements, record = Replacements(plan, start_s=30.0), Record()
    return SimpleNamespace(arrivals=NodeArrivals(replacements, record), replacements=replacements, record=record)


def test_one_that_the_plan_does_not_have_is_a_spare_and_takes_a_lost_one_s_place(bench):
    plan = bench.replacements.plan
    (gone,) = (stage.node for stage in plan.cluster("c1").stages)
    bench.replacements.lost("c1", 0, 0.0)
    alive = {node.name for node in plan.fleet.nodes} - {gone}
    assert not [each for each in bench.replacements.tick(alive, 5.0) if isinstance(each, StartCluster)]
    links = (Link("new", gone, 0.01, 1e6), Link("new", "stranger", 0.01, 1e6))
    came = Fleet((NEW, replace(NEW, name="stranger"), plan.fleet.node(gone)), links)
    bench.arrivals.take(NodeRequest("join", "new", fleet=came), 6.0)
    assert bench.arrivals.knows("new")
    assert not bench.arrivals.knows("stranger")
    assert bench.record.told == [("new", False)]
    assert bench.replacements.plan.fleet.links == links[:1]
    (order,) = bench.replacements.tick(alive | {"new"}, 6.0)
    assert isinstance(order, StartCluster)
    assert [stage.node for stage in order.plan.cluster("c1").stages] == ["new"]


def test_one_that_the_plan_has_is_back(bench):
    known = bench.replacements.plan.fleet.nodes[0]
    bench.arrivals.take(NodeRequest("join", known.name, fleet=Fleet((replace(known, flops_per_s=1.0),))), 0.0)
    assert bench.record.told == [(known.name, True)]
    assert bench.replacements.plan.fleet.node(known.name) == known


def test_one_of_which_nothing_is_known_and_one_that_contradicts_the_plan_are_told(bench):
    plan = bench.replacements.plan
    known, *others = plan.fleet.nodes
    bench.replacements.plan = replace(plan, fleet=replace(plan.fleet, nodes=(replace(known, host="rack"), *others)))
    bench.arrivals.take(NodeRequest("join", "new"), 0.0)
    bench.arrivals.take(NodeRequest("join", "new", fleet=Fleet((replace(NEW, host="rack"),))), 0.0)
    assert bench.record.told == []
    unknown, contradicts = bench.record.notices
    assert "no node of the plan is named 'new'" in unknown
    assert "share its uplink" in contradicts


def test_twenty_that_come_at_once_are_all_taken(bench):
    for number in range(20):
        came = Fleet((replace(NEW, name=f"new{number}"),))
        bench.arrivals.take(NodeRequest("join", f"new{number}", fleet=came), 0.0)
    assert len(bench.record.told) == 20
    assert {f"new{number}" for number in range(20)} <= {spare.node for spare in bench.replacements.plan.spares}
