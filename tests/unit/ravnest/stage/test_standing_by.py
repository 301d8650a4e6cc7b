"""What a stage keeps that stands by. Whole runs: driver/test_in_process_rejoining.py."""

import torch

from ravnest.stage.assembling import standing_by
from ravnest.stage.standing_by import kept_state
from tests.support.local import local_run, tiny_job

OUTER = {"outer": {"nesterov": {"lr": 0.7, "momentum": 0.9}}}


def test_it_keeps_anchor_buffers_and_both_optimizers():
    job = tiny_job(average_every=48, model={"factory": "tiny:cnn"}, data={"factory": "tiny:images"}, averaging=OUTER)
    run = local_run(job, parts=(2, 1), stands_by=True)
    while run.control.rounds_committed < 2:
        run.turn()
    stage = run.stages["c0.s0"]
    kept = kept_state(stage)
    assert stage.rounds.merged == stage.rings.committed
    for ring, segment in kept.segments.items():
        names = stage.rings.segments[ring].parameters
        flat = torch.cat([segment.weights[name].flatten() for name in names])
        assert torch.equal(flat, stage.rounds.anchor(ring))
        assert segment.round == stage.rounds.merged
        assert segment.outer.keys() == {(name, "outer_momentum") for name in names}
        assert "bn1.running_mean" in segment.weights
    assert {name for name, _ in kept.optimizer} == set(stage.compute.weights.names)


def test_only_one_that_is_told_to_stands_by():
    run = local_run(tiny_job(average_every=48), parts=(2, 2), stands_by=True)
    for _ in range(40):
        run.turn()
    assert standing_by(run.stages["c1.s0"]) is None
    run.lose("c1.s1")
    run.turn()
    stood = run.stages["c1.s0"]
    assert not stood.stopped
    assert stood.rounds is None
    assert "c1.s0" not in run.control.clusters.stages
