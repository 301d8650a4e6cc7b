"""What joins the parts of a stage: its data, its state, and long steps beside which it says that it lives."""

import threading
from concurrent import futures

import pytest
from torch.nn import functional

from ravnest.driver.preparation import needed
from ravnest.job.initial_weights import make_weights
from ravnest.splitting import StageModule
from ravnest.stage import messages as m
from ravnest.stage.assembling import assemble, batch_source, living
from ravnest.stage.executor import InlineExecutor
from ring_allreduce.transport import InProcessNetwork, Lane
from tests.support.local import JOB_FILE, setups_of, tiny_job


def test_only_first_and_last_stages_read_data():
    setups, _ = setups_of(tiny_job(), parts=(3,))
    sources = [batch_source(setups[f"c0.s{index}"]) for index in range(3)]
    assert sources[1] is None
    (_, first), (_, last) = sources[0].train(5), sources[2].train(5)
    assert first.tolist() == last.tolist()


def test_a_resumed_stage_goes_on_at_its_version_in_micro_batches_and_learning_rate():
    job = tiny_job(optimizer={"name": "sgd", "lr": 1.0, "schedule": {"name": "constant", "warmup_updates": 10}})
    (setup,) = setups_of(job, parts=(1,))[0].values()
    network = InProcessNetwork()
    endpoint, driver = network.endpoint(setup.name, m.codec()), network.endpoint(m.DRIVER, m.codec())
    network.connect_all()
    weights = make_weights(job, JOB_FILE)
    state = {name: weights[name] for name in needed(setup)}
    stage = assemble(setup, endpoint, InlineExecutor(), batch_source(setup), state, {}, 7, now=lambda: 0.0)
    driver.send(setup.name, Lane.PIPELINE, m.Go())
    told = []
    while not told:
        stage.turn(0.0)
        told = [each.message for each in driver.poll(0.0) if isinstance(each.message, m.Updated)]
    assert told[0].update == 7
    assert told[0].lr == pytest.approx(0.8)  # the eighth of ten steps up
    inputs, target = batch_source(setup).train(7 * job.update_every)
    (output,) = StageModule(setup.program, state)(*inputs)
    loss = functional.cross_entropy(output.flatten(0, -2), target.flatten()).item()
    assert told[0].losses[0] == pytest.approx(loss, rel=1e-6)


def test_a_long_step_is_done_aside_while_the_driver_hears_that_the_stage_lives_and_gets_on():
    network = InProcessNetwork()
    endpoint, driver = network.endpoint("c0.s0", m.codec()), network.endpoint(m.DRIVER, m.codec())
    network.connect_all()
    may_end, waits = threading.Event(), []

    def waited(done, seconds):
        waits.append(seconds)
        if len(waits) == 4:
            may_end.set()
            return bool(futures.wait([done]).done)
        return False

    def work():
        assert may_end.wait(60)
        return threading.current_thread()

    assert living(endpoint, work, 7, 1, waited) is not threading.current_thread()
    assert waits == [m.ALIVE_EVERY_S] * 4
    assert [each.message.finished for each in driver.poll(0.0)] == [8, 9, 10]


def test_what_a_long_step_raises_is_raised():
    endpoint = InProcessNetwork().endpoint("c0.s0", m.codec())
    with pytest.raises(ZeroDivisionError):
        living(endpoint, lambda: 1 // 0, 0, 1)
