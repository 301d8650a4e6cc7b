"""What is read of a checkpoint goes to the stages of a cluster that joins."""

from concurrent.futures import Future

import torch

from ravnest.driver.instructions import HandOver
from ravnest.driver.preparation import StageState, needed
from ravnest.driver.state_handover import SavedState, StateHandover
from ravnest.errors import InvalidInput
from ravnest.stage import messages as m
from ring_allreduce.transport import InProcessNetwork, Outbox
from tests.support.local import setups_of, tiny_job


class Disk:
    """Carries out what it is given when it is told to."""

    def __init__(self):
        self.waiting = []

    def submit(self, function, *arguments):
        future = Future()
        self.waiting.append((future, function, arguments))
        return future

    def work(self):
        for future, function, arguments in self.waiting:
            try:
                future.set_result(function(*arguments))
            except InvalidInput as error:
                future.set_exception(error)
        self.waiting.clear()


def handover(read):
    network = InProcessNetwork()
    driver, stage = network.endpoint(m.DRIVER, m.codec()), network.endpoint("c0.s0", m.codec())
    network.connect_all()
    setups, _ = setups_of(tiny_job(), parts=(1,))
    disk, outbox = Disk(), Outbox(driver)
    return StateHandover(read, disk, outbox, driver), disk, outbox, stage, setups


def test_state_is_sent_once_it_is_read():
    def read(order, setups):
        weights = {name: torch.zeros(1) for setup in setups.values() for name in needed(setup)}
        return SavedState({"c0.s0": StageState(weights, {}, order.updates)}, 9)

    handing, disk, outbox, stage, setups = handover(read)
    handing.order(HandOver("c0", 8, 5), setups)
    assert handing.turn() == []
    outbox.flush()
    assert stage.poll(0.0) == []
    disk.work()
    assert handing.turn() == []
    outbox.flush()
    count = len(needed(setups["c0.s0"]))
    told = [delivery.message for delivery in stage.poll(0.0)]
    assert m.Begin(tensors=count, version=5, round=9) in told
    assert len(told) == count + 1
    assert handing.turn() == []


def test_a_checkpoint_that_cannot_be_read_is_told_with_the_cluster():
    def read(order, setups):
        raise InvalidInput("is damaged")

    handing, disk, _, _, setups = handover(read)
    handing.order(HandOver("c0", 8, 5), setups)
    disk.work()
    assert handing.turn() == [("c0", "is damaged")]


def test_a_cluster_that_is_lost_meanwhile_is_sent_nothing():
    handing, disk, outbox, stage, setups = handover(lambda order, setups: SavedState({}, 9))
    handing.order(HandOver("c0", 8, 5), setups)
    handing.forget("c0")
    disk.work()
    assert handing.turn() == []
    outbox.flush()
    assert stage.poll(0.0) == []
