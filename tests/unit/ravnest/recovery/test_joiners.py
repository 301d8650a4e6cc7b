from dataclasses import replace

import pytest

from cluster_planner import Fleet, Node, RegionLink, cluster_at, validate, with_cluster
from ravnest.errors import InvalidInput
from ravnest.recovery.joiners import CAME, MOST_NODES, planned_shares, with_comers, with_nodes
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


BIG = replace(NEW, memory_bytes=10**10, up_bytes_per_s=1e8, down_bytes_per_s=1e8)


def with_a_further_cluster(plan):
    """The plan as it is once a node has come that holds the model, and trains as a cluster."""
    grown = with_nodes(plan, Fleet((BIG,)), ["new"])
    return with_cluster(grown, cluster_at(grown, "joined0", [], ["new"]), CAME)


def test_who_had_come_is_in_the_plan_again_where_its_nodes_are_there(plan):
    last = with_a_further_cluster(plan)
    again = with_comers(plan, last, last.fleet.names)
    validate(again)
    assert again == last
    assert with_comers(again, last, last.fleet.names) == again
    away = with_comers(plan, last, plan.fleet.names)
    assert away.clusters == plan.clusters
    assert [spare.node for spare in away.spares] == ["new"]
    assert with_comers(plan, plan, plan.fleet.names) is plan


def test_a_further_cluster_whose_node_the_plan_uses_by_now_is_not_made(plan):
    last = with_a_further_cluster(plan)
    (first, *_), more = plan.clusters, with_nodes(plan, Fleet((BIG,)), ["new"])
    taken = with_cluster(more, replace(first, stages=(replace(first.stages[0], node="new"), *first.stages[1:])), CAME)
    assert with_comers(taken, last, last.fleet.names).clusters == taken.clusters


def test_a_cluster_that_came_takes_no_part_of_the_others_data(plan):
    last = with_a_further_cluster(plan)
    shares = planned_shares(last)
    assert shares == planned_shares(plan) == {each.name: plan.share(each.name) for each in plan.clusters}
    assert "joined0" not in shares
