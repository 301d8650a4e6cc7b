import pytest
import torch

from ravnest.errors import NodeLost
from ravnest.runtime import messages as m
from ravnest.runtime.process import batch_source, receive_state
from ring_allreduce.transport import InProcessNetwork, Lane
from tests.support.local import setups_of, tiny_job


@pytest.fixture
def pair():
    network = InProcessNetwork()
    endpoints = [network.endpoint(name, m.codec()) for name in (m.DRIVER, "c0.s1", "c0.s0")]
    network.connect_all()
    return endpoints


class Clock:
    """Each look at it is a quarter of a second later."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        self.now_s += 0.25
        return self.now_s


def test_state_is_whole_when_as_much_has_come_as_was_announced(pair):
    driver, stage, neighbour = pair
    driver.send("c0.s1", Lane.PIPELINE, m.Begin(tensors=2, version=7))
    neighbour.send("c0.s1", Lane.BULK, m.StateTensor(part="weight", name="w"), [torch.zeros(2)])
    driver.send("c0.s1", Lane.BULK, m.StateTensor(part="weight", name="w"), [torch.ones(2)])
    driver.send("c0.s1", Lane.BULK, m.StateTensor(part="optimizer", name="w", key="exp_avg"), [torch.ones(2)])
    begin, weights, optimizer = receive_state(stage)
    assert begin.version == 7
    assert weights["w"].tolist() == [1.0, 1.0]
    assert set(optimizer) == {("w", "exp_avg")}


def test_while_it_waits_a_stage_says_that_it_lives_and_how_much_has_come(pair):
    driver, stage, _ = pair
    driver.send("c0.s1", Lane.PIPELINE, m.Begin(tensors=2, version=0))
    driver.send("c0.s1", Lane.BULK, m.StateTensor(part="weight", name="w"), [torch.ones(2)])
    with pytest.raises(NodeLost, match="the driver sent no more state for 30 s"):
        receive_state(stage, deadline_s=30.0, now=Clock())
    told = [delivery.message for delivery in driver.poll(0.0)]
    assert len(told) >= 10
    assert set(told) == {m.Alive(finished=1)}


def test_only_first_and_last_stages_read_data():
    setups, _ = setups_of(tiny_job(), parts=(3,))
    sources = [batch_source(setups[f"c0.s{index}"]) for index in range(3)]
    assert sources[1] is None
    (_, first), (_, last) = sources[0].train(5), sources[2].train(5)
    assert first.tolist() == last.tolist()
