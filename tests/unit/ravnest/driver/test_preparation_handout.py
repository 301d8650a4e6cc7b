import torch

from ravnest.driver.preparation import StageState, hand_out, needed
from ravnest.job.initial_weights import make_weights
from ravnest.stage import messages as m
from ravnest.stage.process import receive_state
from ring_allreduce.transport import InProcessNetwork, Outbox
from tests.support.local import JOB_FILE, setups_of, tiny_job


def test_each_stage_gets_its_span_its_optimizer_state_and_its_version():
    job = tiny_job(model={"factory": "tiny:cnn"}, data={"factory": "tiny:images"})
    setups, _ = setups_of(job, parts=(2, 1))
    weights = make_weights(job, JOB_FILE)
    states = {
        name: StageState(weights, {(f"{name}.p", "step"): torch.tensor(float(number))}, number)
        for number, name in enumerate(setups)
    }
    network = InProcessNetwork()
    driver = network.endpoint(m.DRIVER, m.codec())
    endpoints = {name: network.endpoint(name, m.codec()) for name in setups}
    network.connect_all()
    outbox = Outbox(driver)
    hand_out(outbox, driver, setups.values(), states)
    outbox.flush()
    held = {}
    for number, (name, setup) in enumerate(setups.items()):
        begin, got, optimizer = receive_state(endpoints[name])
        assert begin.version == number
        assert list(got) == needed(setup)
        assert all(torch.equal(tensor, weights[key]) for key, tensor in got.items())
        assert list(optimizer) == [(f"{name}.p", "step")]
        held[name] = set(got)
    assert held["c0.s0"] | held["c0.s1"] == held["c1.s0"] == set(weights)
    assert not held["c0.s0"] & held["c0.s1"]
