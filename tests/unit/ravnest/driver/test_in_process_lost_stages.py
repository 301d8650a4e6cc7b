"""Runs that lose a stage: its cluster leaves, the others go on, and their anchors stay equal."""

import random

import pytest
import torch

from ravnest.driver.instructions import RunPhase
from ravnest.errors import NodeLost
from tests.support.local import in_two_regions, local_run, tiny_job

JOB = {"average_every": 48, "stop": {"samples": 480}}


def anchors_agree(run):
    """Whether all members of each ring hold the same anchor, byte for byte."""
    held = {}
    for stage in run.stages.values():
        for segment in stage.setup.segments:
            held.setdefault(segment.ring, []).append(stage.rounds.anchor(segment.ring))
    return all(torch.equal(first, other) for first, *others in held.values() for other in others)


def run_and_lose(stage, turns, *, parts=(2, 2), **changes):
    run = local_run(tiny_job(**{**JOB, **changes}), parts=parts)
    for _ in range(turns):
        run.turn()
    run.lose(stage)
    return run, run.run()


@pytest.mark.parametrize("turns", [1, 20, 50])
@pytest.mark.parametrize("stage", ["c0.s0", "c1.s1"])
def test_the_other_cluster_goes_on_to_the_end(stage, turns):
    run, result = run_and_lose(stage, turns)
    lost = stage.partition(".")[0]
    assert [(each.cluster, each.stage) for each in result.lost] == [(lost, stage)]
    assert run.control.phase is RunPhase.DONE
    assert 480 <= run.control.samples < 480 + 48
    assert anchors_agree(run)
    assert result.checkpoints, "the last anchor was saved"
    (other,) = {"c0", "c1"} - {lost}
    assert result.losses[other][-1] < result.losses[other][0]


def test_what_was_averaged_before_a_loss_is_kept_and_the_rest_is_counted():
    run, result = run_and_lose("c1.s0", 60)
    assert 0 < run.control.updates["c1"] * 12 < run.control.samples
    assert 0 <= result.lost[0].samples <= 2 * 48


def test_the_loss_of_the_last_cluster_ends_the_run():
    run = local_run(tiny_job(**JOB), parts=(2, 1))
    for _ in range(10):
        run.turn()
    run.lose("c0.s1")
    with pytest.raises(NodeLost, match="switched off"):
        run.lose("c1.s0", "switched off")


def test_a_lost_evaluator_is_replaced():
    run = local_run(tiny_job(**{**JOB, "evaluate_every": 96}), parts=(2, 2))
    while not run.result.evaluations:
        run.turn()
    run.lose("c0.s0")
    assert len(run.run().evaluations) >= 3


@pytest.mark.parametrize("wire", ["float32", "int4", "sparse"])
def test_rings_of_rings_form_groups_anew_among_those_who_are_left(wire):
    averaging = {"wire": wire, "hierarchical": True}
    run = local_run(tiny_job(**JOB, averaging=averaging), parts=(1, 1, 2, 1, 1), changed=in_two_regions)
    for cluster in ("c4", "c1"):
        for _ in range(20):
            run.turn()
        run.lose(f"{cluster}.s0")
    result = run.run()
    assert [each.cluster for each in result.lost] == ["c4", "c1"]
    assert run.control.rounds_committed >= 5
    assert anchors_agree(run)


@pytest.mark.parametrize("seed", range(5))
def test_losses_at_any_moment_leave_equal_anchors(seed):
    """Three clusters of unequal cuts lose two of them, one after the other, under any order of turns."""
    chance = random.Random(seed)
    run = local_run(
        tiny_job(**{**JOB, "max_lag": 1 + seed % 2, "evaluate_every": 96}),
        parts=(2, 1, 3),
        order=lambda stages: chance.sample(stages, k=chance.randint(1, len(stages))) if stages else stages,
    )
    for cluster in chance.sample(["c0", "c1", "c2"], k=2):
        for _ in range(chance.randrange(200)):
            run.turn()
        alive = [name for name in run.stages if name.startswith(cluster)]
        if run.control.phase is RunPhase.DONE or not alive:
            break
        run.lose(chance.choice(alive))
    result = run.run()
    assert run.control.phase is RunPhase.DONE
    assert anchors_agree(run)
    assert result.checkpoints


def test_a_last_checkpoint_that_lacks_a_lost_stage_is_sent_again():
    run = local_run(tiny_job(**JOB), parts=(2, 2))
    while not (run.control.phase is RunPhase.FINISHING and run.control.saving):
        run.turn()
    run.lose("c0.s1")
    result = run.run()
    assert [each.round for each in result.begun][-2:] == [result.begun[-1].round] * 2
    assert [each.lost for each in result.begun][-2:] == [(), ("c0",)]
    (other,) = (stage for stage in run.stages.values() if stage.setup.index == 0)
    segment = other.setup.segments[0]
    saved = torch.cat([result.checkpoints[-1][name].flatten() for name in segment.parameters])
    assert torch.equal(saved, other.rounds.anchor(segment.ring))
