"""Runs from which a cluster leaves with notice: nothing is lost, and the others go on with equal anchors."""

import random

import pytest

from ravnest.driver.instructions import RunPhase
from tests.support.local import local_run, tiny_job
from tests.unit.ravnest.driver.test_in_process_rejoining import anchors_agree, forward

JOB = {"average_every": 48, "stop": {"samples": 480}}


def leave(run, cluster):
    run.follow(run.control.leave(cluster, "it was asked to"))


def counted(run):
    """Samples by the losses of the last stages, which tell of each micro-batch once."""
    return 4 * sum(len(losses) for losses in run.result.losses.values())


def come_and_go(run, chance, most, before=lambda: None):
    """Let clusters leave, be lost and join again by chance, after less than `most` turns each time. `before`: what
    happens before the turns."""
    for _ in range(14):
        before()
        forward(run, chance.randrange(most))
        if run.control.phase is not RunPhase.TRAINING:
            break
        clusters = run.control.clusters
        cluster = chance.choice(["c0", "c1", "c2"])
        if cluster not in clusters:
            run.rejoin(cluster)
        elif chance.random() < 0.65:
            leave(run, cluster)
        elif len(clusters.staying) > 1:
            run.lose(chance.choice([name for name in run.stages if name.startswith(cluster)]))


@pytest.mark.parametrize(("turns", "every", "max_lag"), [(1, 48, 1), (40, 48, 2), (50, 100_000, 1)])
def test_what_it_has_made_is_averaged_before_it_goes(turns, every, max_lag):
    """Even where the next round is far away: one is made for it."""
    run = local_run(tiny_job(**{**JOB, "average_every": every, "max_lag": max_lag}), parts=(2, 2))
    forward(run, turns)
    leave(run, "c1")
    while not run.result.lost:
        run.turn()
    (left,) = run.result.lost
    assert (left.cluster, left.samples, left.with_notice, left.left) == ("c1", 0, True, ("c0",))
    assert run.control.phase is RunPhase.TRAINING
    made = run.control.updates["c1"]
    result = run.run()
    assert run.control.updates["c1"] == made
    assert counted(run) == run.control.samples
    assert set(run.stages) == {"c0.s0", "c0.s1"}
    assert anchors_agree(run)
    assert result.checkpoints


def test_it_can_come_back():
    run = local_run(tiny_job(**JOB), parts=(1, 2))
    forward(run, 40)
    leave(run, "c1")
    while not run.result.lost:
        run.turn()
    run.rejoin("c1")
    result = run.run()
    assert [each.cluster for each in result.trains] == ["c1"]
    assert counted(run) == run.control.samples
    assert anchors_agree(run)


def test_the_only_cluster_that_would_stay_does_not_leave():
    run = local_run(tiny_job(**JOB), parts=(1, 1))
    forward(run, 20)
    leave(run, "c1")
    assert run.control.leave("c0", "it was asked to") == []
    assert run.control.leave("c1", "it was asked again") == []
    run.run()
    assert [each.cluster for each in run.result.lost] == ["c1"]


def test_one_that_follows_only_goes_at_once():
    run = local_run(tiny_job(**JOB), parts=(1, 1))
    forward(run, 40)
    run.lose("c1.s0")
    run.rejoin("c1")
    forward(run, 3)
    leave(run, "c1")
    assert [each.cluster for each in run.result.left_again] == ["c1"]
    run.run()
    assert set(run.stages) == {"c0.s0"}


def test_one_that_dies_while_it_leaves_is_lost():
    run = local_run(tiny_job(**JOB), parts=(1, 2))
    forward(run, 50)
    leave(run, "c1")
    run.lose("c1.s1")
    assert [each.with_notice for each in run.result.lost] == [False]
    run.run()
    assert anchors_agree(run)


@pytest.mark.parametrize("seed", range(3))
def test_clusters_that_leave_die_and_come_back_at_any_moment_leave_equal_anchors(seed):
    chance = random.Random(seed)
    run = local_run(
        tiny_job(**{**JOB, "max_lag": 1 + seed % 3, "evaluate_every": 192}),
        parts=(2, 1, 3),
        order=lambda stages: chance.sample(stages, k=chance.randint(1, len(stages))) if stages else stages,
    )
    come_and_go(run, chance, most=40)
    run.run()
    assert run.control.phase is RunPhase.DONE
    assert anchors_agree(run)
    assert all(each.samples == 0 for each in run.result.lost if each.with_notice)
    assert run.control.samples <= counted(run)


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_one_that_leaves_saves_what_the_run_has_when_the_others_are_lost_meanwhile(turns):
    run = local_run(tiny_job(**{**JOB, "average_every": 100_000}), parts=(2, 1))
    forward(run, 50)
    leave(run, "c1")
    forward(run, turns)
    run.lose("c0.s1")
    result = run.run()
    assert run.control.begins_again == "killed"
    assert run.control.updates["c1"] > 0
    assert result.begun[-1].updates == dict(run.control.updates)
    assert result.checkpoints
    assert [each.cluster for each in result.lost] == ["c0"]
