from dataclasses import replace

import pytest

from cluster_planner import Fleet, Node, RegionLink
from ravnest.errors import InvalidInput
from ravnest.recovery.joiners import CAME, MOST_NODES, with_nodes
from tests.support.local import setups_of, tiny_job

NEW = Node(name="new", flops_per_s=2e9, memory_bytes=1, up_bytes_per_s=1e6, down_bytes_per_s=2e6, region="here")


@pytest.fixture
def plan():
    return setups_of(tiny_job(), parts=(2, 1))[1]


def test_a_new_node_comes_with_pairs_of_regions_that_are_not_known(plan):
    known = replace(plan.fleet.nodes[0], region="there")
    plan = replace(plan, fleet=replace(plan.fleet, nodes=(known, *plan.fleet.nodes[1:])))
    far = replace(NEW, name="far", region="elsewhere")
    pairs = (RegionLink("here", "there", 0.1, 1e6), RegionLink("here", "elsewhere", 1.0, 1e6))
    came = Fleet((NEW, known, far), (), pairs)
    grown = with_nodes(plan, came, ["new", known.name])
    assert grown.fleet.regions == came.regions[:1]
    assert [(spare.node, spare.reason) for spare in grown.spares] == [("new", CAME)]
    assert grown.clusters == plan.clusters


def test_a_fleet_without_the_node_and_one_node_too_many_are_refused(plan):
    with pytest.raises(InvalidInput, match="no node is named 'old'"):
        with_nodes(plan, Fleet((NEW,)), ["old"])
    many = tuple(replace(NEW, name=f"n-{number}") for number in range(MOST_NODES))
    with pytest.raises(InvalidInput, match=f"may have {MOST_NODES} at most"):
        with_nodes(plan, Fleet(many), [node.name for node in many])
