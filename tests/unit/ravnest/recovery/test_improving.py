"""Which cluster is better planned anew, and whether that pays: c0 has two stages, c1 one, all nodes as slow."""

import math
from dataclasses import replace

import pytest

from cluster_planner import Node
from ravnest.recovery.improving import addition, improvement
from ravnest.recovery.joiners import with_nodes
from ravnest.recovery.placing import START_S
from tests.support.local import setups_of, tiny_job

SPEED = 1e6
NEW = Node(name="new", flops_per_s=SPEED, memory_bytes=10**10, up_bytes_per_s=1e7, down_bytes_per_s=1e7)


@pytest.fixture
def plan():
    plan = setups_of(tiny_job(), parts=(2, 1))[1]
    nodes = tuple(replace(each, flops_per_s=SPEED) for each in plan.fleet.nodes)
    plan = replace(plan, fleet=replace(plan.fleet, nodes=nodes))
    return with_nodes(plan, replace(plan.fleet, nodes=(NEW,)), ["new"])


def nodes_of(cluster):
    return [stage.node for stage in cluster.stages]


def test_the_cluster_that_gains_the_most_gets_the_new_node(plan):
    found = improvement(plan, ["c0", "c1"], ["new"], {}, math.inf)
    assert found is not None
    assert found.made.name == "c1", "two nodes instead of one: c0 would have three instead of two"
    assert set(nodes_of(found.made)) == {"new", *nodes_of(plan.cluster("c1"))}
    assert "with 'new'" in found.reason
    assert found.gained == math.inf


def test_a_node_that_stays_slow_gets_less_or_nothing(plan):
    first, second = nodes_of(plan.cluster("c0"))
    found = improvement(plan, ["c0", "c1"], [], {first: 20.0}, math.inf)
    assert found is not None
    assert nodes_of(found.made) == [second]
    assert f"{first!r} takes 20.0 times as long as planned, without {first!r}" in found.reason


def test_nothing_changes_where_nothing_has_changed_or_the_gain_is_small(plan):
    assert improvement(plan, ["c0", "c1"], [], {}, math.inf) is None
    plan = replace(plan, fleet=replace(plan.fleet, nodes=(*plan.fleet.nodes[:-1], replace(NEW, flops_per_s=1e3))))
    assert improvement(plan, ["c0", "c1"], ["new"], {}, math.inf) is None


def test_what_does_not_pay_within_the_rest_of_the_run_is_left(plan):
    assert improvement(plan, ["c0", "c1"], ["new"], {}, START_S) is None
    assert improvement(plan, ["c0", "c1"], ["new"], {}, 1.5 * START_S) is None
    long = improvement(plan, ["c0", "c1"], ["new"], {}, 1e6)
    assert long is not None
    assert 0 < long.gained < math.inf


def test_nodes_that_come_make_a_further_cluster_where_they_hold_the_model_and_that_makes_more(plan):
    found = addition(plan, "joined0", ["c0", "c1"], ["new"], math.inf)
    assert found is not None
    assert nodes_of(found.made) == ["new"]
    assert "'new' came" in found.reason
    assert addition(plan, "joined0", ["c0", "c1"], [], math.inf) is None
    assert addition(plan, "joined0", ["c0", "c1"], ["new"], START_S) is None
    slow = replace(plan, fleet=replace(plan.fleet, nodes=(*plan.fleet.nodes[:-1], replace(NEW, flops_per_s=1e3))))
    assert addition(slow, "joined0", ["c0", "c1"], ["new"], math.inf) is None
    small = replace(plan, fleet=replace(plan.fleet, nodes=(*plan.fleet.nodes[:-1], replace(NEW, memory_bytes=1))))
    assert addition(small, "joined0", ["c0", "c1"], ["new"], math.inf) is None
