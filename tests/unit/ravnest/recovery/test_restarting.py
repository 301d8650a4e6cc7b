from dataclasses import replace

import pytest

from cluster_planner import Constraints, NoFeasiblePlan, Pin, cluster_at, validate, with_cluster
from ravnest.recovery.restarting import (
    FIRST_WAIT_S,
    LONGEST_WAIT_S,
    MOST_IN_A_ROW,
    NODES_WAIT_S,
    Restarts,
    look_for_nodes_s,
    plan_among,
    plan_for,
)
from tests.support.local import setups_of, tiny_job


@pytest.fixture(scope="module")
def plan():
    _, made = setups_of(tiny_job(), parts=(2, 2))
    return made


def names(plan):
    return {node.name for node in plan.fleet.nodes}


@pytest.mark.parametrize("checkpoint", [None, "checkpoint-000003"])
def test_a_run_that_comes_to_no_other_checkpoint_begins_again_so_often_and_later_each_time(checkpoint):
    restarts = Restarts()
    waits = [restarts.after(checkpoint, gone=False) for _ in range(MOST_IN_A_ROW)]
    assert waits == [FIRST_WAIT_S * 2**i for i in range(MOST_IN_A_ROW)]
    assert max(waits) <= LONGEST_WAIT_S
    assert restarts.after(checkpoint, gone=False) is None


def test_a_node_at_which_a_run_ends_again_and_again_is_named_and_then_all_is_tried_anew():
    restarts = Restarts()
    for node, named in (("a", False), ("b", False), ("b", True), ("b", False), ("", False), ("b", False)):
        restarts.after("checkpoint-000001", gone=False)
        assert restarts.ended_at(node) is named
    restarts.after("checkpoint-000002", gone=False)
    assert not restarts.ended_at("b"), "it has come to another checkpoint in between"
    restarts.after("checkpoint-000002", gone=False)
    assert restarts.ended_at("b")
    waits = [restarts.after("checkpoint-000002", gone=False) for _ in range(MOST_IN_A_ROW + 1)]
    assert waits == [*(FIRST_WAIT_S * 2**i for i in range(MOST_IN_A_ROW)), None]


def test_a_run_that_does_begins_again_whenever_it_has_to():
    restarts = Restarts()
    assert {restarts.after(f"checkpoint-{i}", gone=False) for i in range(50)} == {FIRST_WAIT_S}


def test_a_plan_made_anew_is_the_same_whatever_the_clusters_were(plan):
    alive = sorted(names(plan))
    first = replace(plan_for(plan, alive[:3]), spares=())
    assert first.clusters != plan.clusters
    assert plan_for(first, alive) == plan_for(plan, alive)
    assert plan_for(first, alive[1:]) == plan_for(plan, alive[1:])


@pytest.mark.parametrize("checkpoint", [None, "checkpoint-000003"])
def test_a_run_whose_nodes_go_begins_again_however_often(checkpoint):
    restarts = Restarts()
    assert {restarts.after(checkpoint, gone=True) for _ in range(50)} == {FIRST_WAIT_S}


def test_what_a_node_s_going_may_have_ended_counts_no_more():
    restarts = Restarts()
    for _ in range(2):
        assert None not in [restarts.after(None, gone=False) for _ in range(MOST_IN_A_ROW)]
        assert restarts.after(None, gone=True) is not None
    assert None not in [restarts.after(None, gone=False) for _ in range(MOST_IN_A_ROW)]
    assert restarts.after(None, gone=False) is None


def test_the_plan_stays_while_its_nodes_are_there(plan):
    assert plan_among(plan, names(plan)) is plan


def test_without_a_node_the_others_get_a_plan_of_their_own(plan):
    gone = plan.clusters[0].stages[1].node
    new = plan_among(plan, names(plan) - {gone})
    validate(new)
    assert gone not in {stage.node for cluster in new.clusters for stage in cluster.stages}
    assert {spare.node: spare.reason for spare in new.spares}[gone] == "was not there when the run was planned anew"
    assert new.fleet == plan.fleet, "the node can stand in for another when it is back"
    assert (new.job, new.costs, new.data) == (plan.job, plan.costs, plan.data)


def test_a_plan_in_which_two_clusters_name_one_node_is_made_anew(plan):
    (a, b), other = plan.clusters[0].stages, plan.clusters[1]
    doubled = replace(
        plan,
        clusters=(plan.clusters[0], replace(other, stages=(replace(other.stages[0], node=a.node), *other.stages[1:]))),
    )
    new = plan_among(replace(doubled, min_stages=2), names(plan))
    validate(new)
    assert b.node in {stage.node for cluster in new.clusters for stage in cluster.stages}


def test_a_plan_of_which_one_cluster_was_cut_anew_is_begun_as_it_is(plan):
    """Its segments stay, though no cluster has that cut any more."""
    gone = plan.clusters[0].stages[1].node
    cut = plan
    for cluster in plan.clusters:
        made = cluster_at(cut, cluster.name, [cluster.stages[0].node], ())
        assert made is not None
        cut = with_cluster(cut, made, "its cluster does without it")
    assert plan_among(cut, names(plan) - {gone}) is cut


def test_a_run_waits_for_nodes_and_not_for_ever():
    waited_s = 0.0
    while (again_s := look_for_nodes_s(waited_s)) is not None:
        assert again_s > 0
        waited_s += again_s
    assert 0.9 * NODES_WAIT_S < waited_s <= NODES_WAIT_S


def test_one_node_alone_trains_if_it_can_hold_the_model(plan):
    (only, *_) = sorted(names(plan))
    new = plan_among(plan, {only})
    assert [[stage.node for stage in cluster.stages] for cluster in new.clusters] == [[only]]


@pytest.mark.parametrize("least", [1, 2])
def test_a_new_plan_has_as_many_stages_a_cluster_as_were_asked_for(plan, least):
    """Whatever the old clusters have; here every node holds the model, and rounds are cheap."""
    new = plan_among(replace(plan, min_stages=least), names(plan) - {plan.clusters[0].stages[1].node})
    assert min(len(cluster.stages) for cluster in new.clusters) == least
    assert new.min_stages == least


def test_shorter_pipelines_than_were_asked_for_are_better_than_none(plan):
    (only, *_) = sorted(names(plan))
    new = plan_among(replace(plan, min_stages=2), {only})
    assert ([len(cluster.stages) for cluster in new.clusters], new.min_stages) == ([1], 2)


def test_nodes_that_cannot_hold_the_model_are_told(plan):
    nodes = tuple(replace(node, memory_bytes=10**5) for node in plan.fleet.nodes)
    small = replace(plan, fleet=replace(plan.fleet, nodes=nodes))
    (only, *_) = sorted(names(plan))
    with pytest.raises(NoFeasiblePlan):
        plan_among(small, {only})
    with pytest.raises(NoFeasiblePlan, match="no node of the plan is there"):
        plan_among(plan, set())


def test_what_a_user_demands_is_kept_where_the_nodes_that_are_there_can(plan):
    first = plan.clusters[0].stages[0].node
    rules = Constraints(min_clusters=2, pins=(Pin(first, stage=0),))
    demanding = replace(plan, fleet=replace(plan.fleet, constraints=rules))
    new = plan_for(demanding, names(plan))
    assert (len(new.clusters), new.fleet.constraints) == (2, rules)
    assert len(plan_for(plan, names(plan)).clusters) == 1, "without the demand fewer would be planned"


def test_a_plan_that_cannot_keep_what_a_user_demands_can_be_read_and_begun_again(plan):
    first, last = plan.clusters[0].stages[0].node, plan.clusters[1].stages[0].node
    rules = Constraints(min_clusters=2, forbid=((first, last),), pins=(Pin(first, stage=0),))
    new = plan_for(replace(plan, fleet=replace(plan.fleet, constraints=rules)), {last})
    validate(new)
    assert new.fleet.constraints == replace(rules, min_clusters=1, pins=())
    assert plan_among(new, {last}) is new
