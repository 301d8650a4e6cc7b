"""What a real stage sends and does so that the first one can size the window."""

from functools import partial

from ravnest.stage import messages as m
from tests.support import local
from tests.unit.ravnest.stage.test_runtime import Bench


def test_a_gradient_tells_how_long_its_micro_batch_waited_and_what_the_slowest_stage_takes():
    bench = Bench("c0.s1")
    bench.say("c0.s0", *bench.activation(0))
    bench.turn(3)
    header, *tensors = bench.gradient(0)
    told = m.Gradient(micro_batch=0, queued_s=1.5, busiest_s=7.0)
    bench.say("c0.s2", told, *tensors)
    bench.turn(1)
    bench.turn(1, after_s=0.25)  # the backward, which the clock sees take this long
    bench.turn(2)
    (gradient,) = [each.message for each in bench.heard("c0.s0") if isinstance(each.message, m.Gradient)]
    assert header.micro_batch == gradient.micro_batch == 0
    assert (gradient.queued_s, gradient.busiest_s) == (1.5, 7.0)


def test_a_first_stage_that_waits_for_a_far_pipeline_widens_its_window_and_tells_the_driver(monkeypatch):
    monkeypatch.setattr(local, "plan_with", partial(local.plan_with, window=2))
    bench = Bench("c0.s0", update_every=32, stop={"samples": 1280})
    bench.say(m.DRIVER, m.Go())
    bench.turn(8)
    for micro_batch in range(4):
        header, *tensors = bench.gradient(micro_batch)
        told = m.Gradient(micro_batch=micro_batch, busiest_s=0.1)
        bench.say("c0.s1", told, *tensors)
        bench.turn(6, after_s=1.0)
        assert header.micro_batch == micro_batch
    tuned = [each.message for each in bench.heard(m.DRIVER) if isinstance(each.message, m.WindowTuned)]
    assert len(tuned) == 1
    assert tuned[0].window > 2
    assert tuned[0].pace_s == 0.1
