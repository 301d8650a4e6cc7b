"""Runs in which a lost cluster begins anew while the others go on: all train in the end, with equal anchors."""

import itertools
import random
from dataclasses import replace

import pytest
import torch

from cluster_planner import Cluster, Stage, with_cluster
from ravnest.driver.instructions import RunPhase
from ravnest.driver.state_donors import KEPT
from ravnest.errors import NodeLost
from tests.support.local import local_run, setups_by, setups_of, tiny_job

JOB = {"average_every": 48, "stop": {"samples": 600}}
TIED = {"factory": "tied:gpt"}


def anchors_agree(run):
    """Whether all members of each ring hold the same anchor, byte for byte."""
    held = {}
    for stage in (run.stages[name] for name in run.control.clusters.stages):
        for segment in stage.setup.segments:
            held.setdefault(segment.ring, []).append(stage.rounds.anchor(segment.ring))
    return all(torch.equal(first, other) for first, *others in held.values() for other in others)


def forward(run, turns):
    for _ in range(turns):
        if run.control.phase is not RunPhase.DONE:
            run.turn()


@pytest.mark.parametrize(("turns", "max_lag"), [(1, 1), (33, 3)])
def test_a_cluster_that_begins_anew_trains_to_the_end(turns, max_lag):
    run = local_run(tiny_job(**JOB, max_lag=max_lag), parts=(2, 2))
    forward(run, 40)
    run.lose("c1.s0")
    forward(run, turns)
    before = run.control.updates["c1"]
    run.rejoin("c1")
    result = run.run()
    assert [each.cluster for each in result.trains] == ["c1"]
    assert run.control.updates["c1"] > before
    assert anchors_agree(run)
    assert set(run.stages) == {"c0.s0", "c0.s1", "c1.s0", "c1.s1"}
    assert 600 <= run.control.samples < 600 + 48


def test_no_sample_counts_twice_and_every_loss_is_told():
    """By the end, what was counted is what the last stages have told of, less what was told to be lost."""
    run = local_run(tiny_job(**JOB), parts=(2, 1))
    for _ in range(2):
        forward(run, 60)
        run.lose("c1.s0")
        forward(run, 5)
        run.rejoin("c1")
        while len(run.result.trains) < len(run.result.lost):
            run.turn()
    result = run.run()
    told = 4 * sum(len(losses) for losses in result.losses.values())
    lost = sum(each.samples for each in result.lost)
    assert lost > 0
    assert told - lost == run.control.samples == 12 * sum(run.control.updates.values())


@pytest.mark.parametrize("model", ["tiny:gpt", "tiny:cnn"])
def test_buffers_counters_and_the_outer_optimizer_come_along(model):
    data = {"factory": "tiny:words" if model == "tiny:gpt" else "tiny:images"}
    averaging = {"outer": {"nesterov": {"lr": 0.7, "momentum": 0.9}}, "wire": "int8"}
    run = local_run(tiny_job(**JOB, model={"factory": model}, data=data, averaging=averaging), parts=(1, 2))
    forward(run, 60)
    run.lose("c1.s1")
    run.rejoin("c1")
    result = run.run()
    assert [each.cluster for each in result.trains] == ["c1"]
    assert anchors_agree(run)
    whole, *parts = (stage.rounds for _, stage in sorted(run.stages.items()))
    mine = {key: tensor for part in parts for key, tensor in part.outer_state().items()}
    assert mine.keys() == whole.outer_state().keys()
    assert all(torch.equal(tensor, mine[key]) for key, tensor in whole.outer_state().items())


def test_the_loss_of_the_only_cluster_that_trains_ends_the_run_though_another_follows():
    run = local_run(tiny_job(**JOB), parts=(1, 1))
    forward(run, 40)
    run.lose("c1.s0")
    run.rejoin("c1")
    with pytest.raises(NodeLost, match="burnt"):
        run.lose("c0.s0", "burnt")


def test_a_cluster_that_is_lost_again_before_it_trains_holds_nobody():
    run = local_run(tiny_job(**JOB), parts=(1, 1))
    forward(run, 40)
    run.lose("c1.s0")
    run.rejoin("c1")
    forward(run, 3)
    run.lose("c1.s0")
    result = run.run()
    assert [each.cluster for each in result.left_again] == ["c1"]
    assert result.trains == []
    assert anchors_agree(run)


def test_a_run_that_ends_meanwhile_waits_for_no_newcomer():
    run = local_run(tiny_job(**{**JOB, "stop": {"samples": 480}}), parts=(1, 1))
    while run.control.samples < 440:
        run.turn()
    run.lose("c1.s0")
    run.rejoin("c1")
    result = run.run()
    assert result.checkpoints
    assert len(result.trains) + len(result.left_again) == 1


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 30])
def test_clusters_that_come_and_go_at_any_moment_leave_equal_anchors(seed):
    """Three clusters of unequal cuts; any but one is lost and begins anew, again and again, in any order of turns."""
    chance = random.Random(seed)
    run = local_run(
        tiny_job(**{**JOB, "max_lag": 1 + seed % 3, "evaluate_every": 192}),
        parts=(2, 1, 3),
        stands_by=seed >= 2,
        order=lambda stages: chance.sample(stages, k=chance.randint(1, len(stages))) if stages else stages,
    )
    away = set()
    for _ in range(12):
        forward(run, chance.randrange(40))
        if run.control.phase is not RunPhase.TRAINING:
            break
        here = [name for name in run.control.clusters.training if name not in away]
        if away and chance.random() < 0.6:
            cluster = chance.choice(sorted(away))
            away.discard(cluster)
            run.rejoin(cluster)
        elif len(here) > 1:
            cluster = chance.choice(sorted({"c0", "c1", "c2"} - away))
            if run.control.clusters.training != [cluster]:
                away.add(cluster)
                run.lose(chance.choice([name for name in run.stages if name.startswith(cluster)]))
    result = run.run()
    assert run.control.phase is RunPhase.DONE
    assert anchors_agree(run)
    told = 4 * sum(len(losses) for losses in result.losses.values())
    counted = 12 * sum(run.control.updates.values())
    assert counted == run.control.samples <= told
    assert result.trains, "some cluster came back"


@pytest.mark.parametrize("tied", ["exact", "averaged"])
def test_tied_parameters_of_a_cluster_that_begins_anew_are_equal_again(tied):
    run = local_run(tiny_job(**JOB, model=TIED, tied=tied), parts=(2, 3))
    forward(run, 60)
    run.lose("c1.s0")
    run.rejoin("c1")
    result = run.run()
    assert [each.cluster for each in result.trains] == ["c1"]
    assert anchors_agree(run)
    assert result.losses["c1"][-1] < result.losses["c1"][0]


@pytest.mark.parametrize(("stages", "tied"), [(1, "exact"), (2, "averaged"), (4, "exact")])
def test_a_cluster_that_begins_anew_with_other_cuts_trains_to_the_end(stages, tied):
    """c0 comes back with fewer stages, or with more, each of whole segments; the rings are the same ones."""
    job = tiny_job(**JOB, model=TIED, tied=tied)
    run = local_run(job, parts=(3, 2))
    _, plan = setups_of(job, parts=(3, 2))
    forward(run, 60)
    run.lose("c0.s2")
    edges = [0, *(ring.units[1] for ring in plan.rings)]
    picked = [*edges[:stages], edges[-1]]
    units = itertools.pairwise(picked)
    more = replace(plan.fleet.nodes[0], name="more")
    plan = replace(plan, fleet=replace(plan.fleet, nodes=(*plan.fleet.nodes, more)))
    nodes = ["n00", "n01", "n02", "more"]
    anew = with_cluster(plan, Cluster("c0", 3, tuple(map(Stage, nodes, units))), "")
    made = {name: setup for name, setup in setups_by(anew, job).items() if setup.cluster == "c0"}
    assert len(made) == stages
    run.rejoin("c0", anew, made)
    result = run.run()
    assert [each.cluster for each in result.trains] == ["c0"]
    assert anchors_agree(run)
    assert set(run.stages) == {*made, "c1.s0", "c1.s1"}
    assert result.losses["c0"][-1] < result.losses["c0"][0]
    told = 4 * sum(len(losses) for losses in result.losses.values())
    assert told - sum(each.samples for each in result.lost) == run.control.samples


def test_the_anchor_comes_from_members_of_the_rings_and_no_checkpoint_is_made_for_it():
    run = local_run(tiny_job(**{**JOB, "evaluate_every": 10_000}), parts=(2, 1, 3))
    forward(run, 60)
    saved = len(run.result.begun)
    run.lose("c2.s1")
    run.rejoin("c2")
    while not run.result.trains:
        run.turn()
    assert len(run.result.begun) == saved
    assert {each.stage for each in run.result.restored} == {"c2.s0", "c2.s1", "c2.s2"}
    donors = {donor for each in run.result.restored for donor in each.donors}
    assert donors <= {"c0.s0", "c0.s1", "c1.s0"}
    assert len(donors) > 1
    run.run()
    assert anchors_agree(run)


def test_donors_that_die_or_send_garbage_are_replaced_by_others():
    run = local_run(tiny_job(**JOB), parts=(1, 1, 1, 1))
    forward(run, 60)
    honest = {name: run.stages[name].rounds.giving.pieces for name in ("c0.s0", "c1.s0", "c2.s0")}
    asked = []

    def pieces(name):
        """The first donor is killed, the second lies, and the third is honest."""
        found = list(honest[name]())
        if found and name not in asked:
            asked.append(name)
        if not found or asked.index(name) == 2:
            return found
        return (
            [] if asked[0] == name else [(to, head, [torch.full_like(it, 7) for it in out]) for to, head, out in found]
        )

    for name in honest:
        run.stages[name].rounds.giving.pieces = lambda name=name: pieces(name)
    run.lose("c3.s0")
    run.rejoin("c3")
    while not asked:
        run.turn()
    run.lose(asked[0])
    result = run.run()
    assert len(asked) == 3
    (restored,) = result.restored
    assert set(restored.donors) == {asked[2]}
    assert anchors_agree(run)


def test_where_every_donor_fails_the_checkpoint_is_the_last_resort():
    run = local_run(tiny_job(**JOB), parts=(1, 1))
    forward(run, 60)
    giving = run.stages["c0.s0"].rounds.giving
    honest = giving.pieces

    def pieces():
        return [(to, head, [torch.full_like(it, 7) for it in out]) for to, head, out in honest()]

    giving.pieces = pieces
    run.lose("c1.s0")
    run.rejoin("c1")
    result = run.run()
    assert [list(each.donors) for each in result.restored] == [["checkpoint"]]
    assert [each.cluster for each in result.trains] == ["c1"]
    assert anchors_agree(run)


@pytest.mark.parametrize("stages", [1, 2])
def test_a_further_cluster_joins_and_reads_in_an_order_of_its_own(stages):
    job = tiny_job(**JOB)
    run = local_run(job, parts=(2, 1))
    _, plan = setups_of(job, parts=(2, 1))
    forward(run, 60)
    edges = [0, *(ring.units[1] for ring in plan.rings)]
    units = itertools.pairwise([*edges[:stages], edges[-1]])
    nodes = tuple(replace(plan.fleet.nodes[0], name=f"new{number}") for number in range(stages))
    plan = replace(plan, fleet=replace(plan.fleet, nodes=(*plan.fleet.nodes, *nodes)))
    made = Cluster("joined0", 3, tuple(Stage(node.name, each) for node, each in zip(nodes, units, strict=True)))
    shares = {cluster.name: plan.share(cluster.name) for cluster in plan.clusters}
    grown = with_cluster(plan, made, "")
    setups = {name: setup for name, setup in setups_by(grown, job, shares=shares).items() if setup.cluster == "joined0"}
    assert {setup.bounds.order for setup in setups.values()} == {"joined0"}
    before = run.control.samples
    run.control.accounts.expected("joined0", grown.share("joined0"))
    assert run.control.samples == before
    start = run.control.updates["joined0"]
    run.rejoin("joined0", grown, setups)
    result = run.run()
    assert [each.cluster for each in result.trains] == ["joined0"]
    assert anchors_agree(run)
    assert run.control.updates["joined0"] > start
    told = 4 * sum(len(losses) for losses in result.losses.values())
    assert told == run.control.samples


def test_the_other_stages_of_a_lost_cluster_keep_their_anchor():
    averaging = {"outer": {"nesterov": {"lr": 0.7, "momentum": 0.9}}}
    run = local_run(tiny_job(**JOB, averaging=averaging), parts=(2, 3), stands_by=True)
    forward(run, 60)
    run.lose("c1.s1")
    run.rejoin("c1")
    result = run.run()
    sources = {each.stage: set(each.donors) for each in result.restored}
    assert sources["c1.s0"] == sources["c1.s2"] == {KEPT}
    assert sources["c1.s1"] <= {"c0.s0", "c0.s1"}
    assert [each.cluster for each in result.trains] == ["c1"]
    assert anchors_agree(run)
    told = 4 * sum(len(losses) for losses in result.losses.values())
    assert told - sum(each.samples for each in result.lost) == run.control.samples


def test_an_anchor_that_is_too_old_by_then_is_not_kept():
    run = local_run(tiny_job(**JOB), parts=(2, 2), stands_by=True)
    forward(run, 60)
    run.lose("c1.s1")
    committed = run.control.rounds_committed
    while run.control.rounds_committed < committed + 2:
        run.turn()
    run.rejoin("c1")
    result = run.run()
    assert {each.stage: set(each.donors) & {KEPT} for each in result.restored} == {"c1.s0": set(), "c1.s1": set()}
    assert [each.cluster for each in result.trains] == ["c1"]
    assert anchors_agree(run)
