"""What a stage keeps that stands by. Whole runs: driver/test_in_process_rejoining.py."""

import torch

from ravnest.stage import messages as m
from ravnest.stage.assembling import standing_by
from ravnest.stage.standing_by import kept_state
from ring_allreduce.transport import Lane
from tests.support.local import local_run, tiny_job
from tests.unit.ravnest.driver.test_taking_over import TakenOver

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


def test_what_an_earlier_driver_says_has_no_effect_on_one_that_stood_by_and_joins_again():
    drivers = TakenOver((2, 2), stands_by=True)
    run = drivers.run
    drivers.forward(40)
    drivers.take_over()
    drivers.forward(5)
    run.lose("c1.s1")
    run.turn()
    run.rejoin("c1")
    run.driver.epoch = 0
    run.driver.send("c1.s0", Lane.PIPELINE, m.Stop())
    run.driver.epoch = 1
    run.turn()
    assert not run.stages["c1.s0"].stopped, "while it joins"
    while not run.result.trains:
        run.turn()
    run.driver.epoch = 0
    run.driver.send("c1.s0", Lane.PIPELINE, m.Stop())
    run.driver.epoch = 1
    run.turn()
    assert not run.stages["c1.s0"].stopped, "when it trains"
    run.run()
    drivers.check_end()
