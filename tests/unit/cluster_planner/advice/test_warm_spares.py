"""Which spares are warm: by how often nodes are lost, what following costs on the uplinks, and memory."""

from dataclasses import replace

import pytest

from cluster_planner import Constraints, InvalidInput, Node, Spare, shadows_among
from cluster_planner.advice.plan_warnings import predicted_again
from cluster_planner.advice.warm_spares import MOST_TRIED, with_warm_spares
from cluster_planner.files.conversion import plan_to
from cluster_planner.plan import validate
from cluster_planner.predict.steady_state import PipelineArrays
from tests.support.local import setups_of, tiny_job

HOUR_S = 3600.0


def plan_of(mtbf_hours=(4.0, 4.0, 4.0, 4.0), spares=("spare",), parts=(2, 2), **changes):
    """Two clusters of two stages on slow links, and spares as fast as they."""
    _, plan = setups_of(tiny_job(average_every=4096), parts=parts)
    figures = {"flops_per_s": 1e9, "memory_bytes": 10**10, "up_bytes_per_s": 1e5, "down_bytes_per_s": 1e6}
    nodes = [
        Node(name=node.name, **figures, mtbf_s=None if hours is None else hours * HOUR_S)
        for node, hours in zip(plan.fleet.nodes, mtbf_hours, strict=True)
    ]
    nodes += [Node(name=name, **{**figures, **changes}) for name in spares]
    fleet = replace(plan.fleet, nodes=tuple(nodes))
    return replace(plan, fleet=fleet, spares=tuple(Spare(name, "it is slow") for name in spares))


def shadowed(plan):
    return shadows_among(plan, [spare.node for spare in plan.spares])


def test_only_stages_whose_nodes_say_how_often_they_are_lost_are_shadowed():
    assert shadowed(plan_of((None, None, None, None))) == {}
    assert shadowed(plan_of((None, 4.0, None, None))) == {("c0", 1): "spare"}
    assert set(shadowed(plan_of())) == {("c0", 0), ("c0", 1), ("c1", 0), ("c1", 1)}


def test_each_stage_has_one_warm_spare_and_what_is_followed_already_is_not_followed_twice():
    plan = plan_of(spares=("spare", "other"))
    assert len(shadowed(plan)) == 4
    more = shadows_among(plan, ["other"], {("c0", 0): "spare"})
    assert ("c0", 0) not in more
    assert set(more.values()) == {"other"}


def test_a_spare_follows_what_its_memory_holds_and_nothing_that_it_could_not_run():
    least = max(stage.memory_bytes for each in plan_of().predicted.clusters for stage in each.stages)
    assert shadowed(plan_of(memory_bytes=1)) == {}
    roomy = {len(shadowed(plan_of(memory_bytes=size))) for size in (10**10, least * 3, least)}
    assert max(roomy) == 4


def test_a_spare_follows_no_stage_whose_place_constraints_keep_it_from():
    plan = plan_of()
    first = plan.cluster("c0").stages[0].node
    plan = replace(plan, fleet=replace(plan.fleet, constraints=Constraints(forbid=((first, "spare"),))))
    assert set(shadowed(plan)) == {("c0", 0), ("c1", 0), ("c1", 1)}, "beside that node it may not be"


def test_rare_losses_do_not_pay_for_the_bytes():
    often, rarely = plan_of((4.0,) * 4), plan_of((1e7,) * 4)
    slow = [replace(node, up_bytes_per_s=2e3, down_bytes_per_s=2e4) for node in rarely.fleet.nodes]
    job = replace(rarely.workload, average_every=rarely.workload.micro_batch * rarely.workload.update_every)
    assert shadowed(often)
    assert shadowed(replace(rarely, workload=job, fleet=replace(rarely.fleet, nodes=tuple(slow)))) == {}


def test_where_following_never_pays_few_spares_are_tried_for_each_stage(monkeypatch):
    """Each of forty spares was tried for each stage: of 96 nodes that took half a minute, also after Ctrl-C."""
    rarely = plan_of((1e7,) * 4, spares=[f"spare{i}" for i in range(40)])
    slow = [replace(node, up_bytes_per_s=2e3, down_bytes_per_s=2e4) for node in rarely.fleet.nodes]
    job = replace(rarely.workload, average_every=rarely.workload.micro_batch * rarely.workload.update_every)
    asked, pace = [], PipelineArrays.pace

    def counted(*args, **kwargs):
        asked.append(1)
        return pace(*args, **kwargs)

    monkeypatch.setattr(PipelineArrays, "pace", counted)
    assert shadowed(replace(rarely, workload=job, fleet=replace(rarely.fleet, nodes=tuple(slow)))) == {}
    assert len(asked) <= 1 + 4 * MOST_TRIED


def test_the_only_cluster_has_nobody_who_could_send_anything():
    assert shadowed(plan_of((4.0, 4.0), parts=(2,))) == {}


def test_a_plan_says_what_its_spares_shadow_and_its_prediction_counts_the_bytes():
    plan = with_warm_spares(plan_of())
    assert plan.spares[0].shadows == (("c0", 0), ("c0", 1), ("c1", 0), ("c1", 1))
    assert plan.spares[0].reason == "it is slow"
    before = with_warm_spares(plan_of((None,) * 4))
    assert before == plan_of((None,) * 4)
    written = plan_to(plan)
    assert written["spares"] == [
        {"node": "spare", "reason": "it is slow", "shadows": [["c0", 0], ["c0", 1], ["c1", 0], ["c1", 1]]}
    ]
    assert "shadows" not in plan_to(before)["spares"][0]


@pytest.mark.parametrize(
    ("shadows", "said"),
    [
        ((("c9", 0),), "no cluster is named 'c9'"),
        ((("c0", 2),), "c0 has no stage 2"),
        ((("c0", 0), ("c0", 0)), "shadows stage 0 of c0 already"),
    ],
)
def test_shadows_of_what_is_not_there_are_refused_by_their_key(shadows, said):
    plan = replace(plan_of(), spares=(Spare("spare", "", shadows),))
    with pytest.raises(InvalidInput, match=said) as refused:
        validate(plan)
    assert refused.value.key.startswith("spares[0].shadows[")


def test_a_plan_with_warm_spares_is_predicted_again_as_it_was_made():
    """What they are sent was left out, so that each such plan was said to have been edited since."""
    plan = with_warm_spares(plan_of())
    assert any(spare.shadows for spare in plan.spares)
    assert predicted_again(plan) is plan
