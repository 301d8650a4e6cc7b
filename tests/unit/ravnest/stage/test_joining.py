"""One stage that joins, with a driver that the test plays. Whole runs: driver/test_in_process_rejoining.py."""

from dataclasses import replace

import pytest
import torch

from ravnest.driver.instructions import ReformRings
from ravnest.driver.preparation import needed
from ravnest.driver.run_rings import RunRings
from ravnest.errors import NodeLost, RunFailed
from ravnest.job.initial_weights import make_weights
from ravnest.stage import epoch_messages as em
from ravnest.stage import messages as m
from ravnest.stage.assembling import batch_source, joining
from ravnest.stage.executor import InlineExecutor
from ravnest.stage.joining import MOST_EARLY
from ring_allreduce.rounds import SILENCE_FLOOR_S
from ring_allreduce.transport import InProcessNetwork, Lane
from tests.support.local import JOB_FILE, setups_of, tiny_job

EPOCH = 4


class Bench:
    """c0.s1, which is alone in its rings: c0 joins a run in which nobody else is. c0.s0 is the test's."""

    def __init__(self):
        torch.set_num_threads(1)
        self.now_s = 0.0
        self.job = tiny_job()
        setups, self.plan = setups_of(self.job, parts=(2,))
        self.setups = {
            name: replace(setup, transport=replace(setup.transport, joins=True, epoch=EPOCH))
            for name, setup in setups.items()
        }
        network = InProcessNetwork()
        self.driver, self.before, endpoint = (
            network.endpoint(name, m.codec()) for name in (m.DRIVER, "c0.s0", "c0.s1")
        )
        network.connect_all()
        setup = self.setups["c0.s1"]
        self.stage = joining(setup, endpoint, InlineExecutor(), batch_source(setup), lambda: self.now_s)

    def tell(self, *messages):
        for message in messages:
            self.driver.send("c0.s1", Lane.PIPELINE, message)
        self.stage.turn(0.0)

    def join(self):
        rings = {str(each.ring): each.members for setup in self.setups.values() for each in setup.segments}
        told = RunRings(self.plan, self.setups).reform(ReformRings(EPOCH + 1, rings, 6, ()))
        resumed = em.RoundsResumedMessage(epoch=EPOCH + 1, kept=(), hand_on=(), first_round=7)
        self.tell(told["c0.s1"], resumed)

    def hand_over(self, round_):
        weights = make_weights(self.job, JOB_FILE)
        names = needed(self.setups["c0.s1"])
        for name in names:
            self.driver.send("c0.s1", Lane.BULK, m.StateTensor(part="weight", name=name), [weights[name]])
        self.tell(m.Begin(tensors=len(names), version=5, round=round_))

    def heard(self, kind):
        return [each.message for each in self.driver.poll(0.0) if isinstance(each.message, kind)]


def test_it_answers_in_the_epoch_and_follows_the_rounds():
    bench = Bench()
    bench.join()
    assert bench.heard(em.RoundsHeld) == [em.RoundsHeld(epoch=EPOCH + 1, holding=())]
    bench.tell(em.FollowRounds(up_to=7))
    assert {(each.round, each.epoch) for each in bench.heard(m.RingFinishedMessage)} == {(7, EPOCH + 1)}


def test_it_says_when_it_holds_the_anchor_and_trains_when_it_is_told_to():
    bench = Bench()
    bench.join()
    bench.tell(em.FollowRounds(up_to=7), m.RoundCommittedMessage(round=7))
    bench.hand_over(7)
    assert len(bench.heard(m.StageStarted)) == 1
    assert bench.stage.runtime is None
    bench.tell(em.FollowRounds(up_to=8), em.TrainFrom(round=8, version=5))
    runtime = bench.stage.runtime
    assert runtime is not None
    assert (runtime.machine.version, runtime.machine.contributed, runtime.machine.merged) == (5, 8, 7)
    bench.tell(m.RoundCommittedMessage(round=8))
    assert runtime.machine.merged == 8


def test_while_its_state_arrives_it_says_how_much_is_here_and_nothing_else():
    bench = Bench()
    bench.join()
    bench.tell(em.FollowRounds(up_to=7), m.RoundCommittedMessage(round=7))
    bench.driver.poll(0.0)
    bench.driver.send("c0.s1", Lane.BULK, m.StateTensor(part="weight", name="w"), [torch.zeros(2)])
    bench.tell()
    assert bench.heard(m.Alive) == [m.Alive(finished=1)]


def test_it_does_not_train_before_it_has_taken_part_in_all_rounds_up_to_then():
    bench = Bench()
    bench.join()
    bench.hand_over(6)
    bench.tell(em.TrainFrom(round=8, version=5))  # the lag allows round 7 alone until that is committed
    assert bench.stage.runtime is None
    bench.tell(m.RoundCommittedMessage(round=7))
    assert bench.stage.runtime is not None


def test_what_came_early_is_not_lost_and_what_an_older_process_sent_is():
    bench = Bench()
    bench.join()
    bench.hand_over(6)
    for epoch, update in ((EPOCH - 1, 99), (EPOCH, 15)):
        bench.before.epoch = epoch
        bench.before.send("c0.s1", Lane.PIPELINE, m.GlobalNorm(update=update, norm_sq=1.0))
    bench.tell()
    # A run that does not clip has no such message. The machine complains of the later one, the first that it hears.
    with pytest.raises(RunFailed, match="update=15"):
        bench.tell(em.TrainFrom(round=6, version=5))


def test_it_leaves_when_it_is_told_to():
    bench = Bench()
    bench.tell(m.Stop())
    assert bench.stage.stopped


def test_it_ends_by_itself_where_the_driver_is_silent():
    bench = Bench()

    def seconds(count):
        for _ in range(int(count)):
            bench.now_s += 1.0
            bench.stage.turn(0.0)

    seconds(SILENCE_FLOOR_S)
    with pytest.raises(NodeLost, match="the driver has been silent"):
        seconds(2)


def test_it_keeps_no_more_than_so_much_that_came_early():
    bench = Bench()
    bench.join()
    for _ in range(MOST_EARLY):
        bench.before.send("c0.s1", Lane.PIPELINE, m.GlobalNorm(update=1, norm_sq=1.0))
        bench.stage.turn(0.0)
    bench.before.send("c0.s1", Lane.PIPELINE, m.GlobalNorm(update=1, norm_sq=1.0))
    with pytest.raises(RunFailed, match=r"c0\.s0 sends more than a stage takes"):
        bench.stage.turn(0.0)
