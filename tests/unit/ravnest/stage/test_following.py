"""Stages that follow rounds: c0 trains, and c1 takes part without weight until it holds the anchor."""

import pytest
import torch

from ravnest.driver.instructions import ReformRings
from ravnest.driver.run_rings import RunRings
from ravnest.errors import RunFailed
from ravnest.job.initial_weights import make_weights
from ravnest.splitting import StageModule
from ravnest.stage import epoch_messages as em
from ravnest.stage import following
from ravnest.stage import messages as m
from ravnest.stage.following import MOST_KEPT, RoundFollower
from ravnest.stage.rings import StageRings
from ravnest.stage.rounds import StageRounds
from ravnest.training.averaging import split_outer
from ravnest.training.weights import VersionedWeights
from ring_allreduce.transport import InProcessNetwork
from tests.support.local import JOB_FILE, setups_of, tiny_job
from tests.support.state import saved

CNN = {"model": {"factory": "tiny:cnn"}, "data": {"factory": "tiny:images"}}
OUTER = {"outer": {"nesterov": {"lr": 0.7, "momentum": 0.9}}}


class Pair:
    """The two stages, after committed rounds up to `committed`; the next is c1's first."""

    def __init__(self, committed=2, max_lag=1):
        self.job = tiny_job(**CNN, averaging=OUTER, max_lag=max_lag)
        setups, plan = setups_of(self.job, parts=(1, 1))
        self.setups = setups
        network = InProcessNetwork()
        self.driver = network.endpoint(m.DRIVER, m.codec())
        self.endpoints = {name: network.endpoint(name, m.codec()) for name in setups}
        network.connect_all()
        self.rings = {name: StageRings(setups[name], self.endpoints[name], joins=True) for name in setups}
        self.weights, self.trainer = self.rounds("c0.s0")
        self.follower = RoundFollower(setups["c1.s0"], self.rings["c1.s0"])
        order = ReformRings(1, {"0": ("c0.s0", "c1.s0")}, committed, (), ("c1",))
        for name, message in RunRings(plan, setups).reform(order).items():
            assert self.rings[name].on_reformed(message) == []
        for name in setups:
            resumed = em.RoundsResumedMessage(epoch=1, kept=(), hand_on=(), first_round=committed + 1)
            assert self.rings[name].on_resumed(resumed) == []

    def rounds(self, name, saved=None):
        module = StageModule(self.setups[name].program, {**make_weights(self.job, JOB_FILE), **(saved or {})})
        weights = VersionedWeights(module, self.job.optimizer)
        return weights, StageRounds(self.setups[name], module, weights, self.rings[name])

    def train(self, number):
        """c0 makes progress and contributes it."""
        for segment in self.setups["c0.s0"].segments:
            vector = self.weights.flat(segment.parameters)
            self.weights.add_correction(segment.parameters, torch.linspace(0.0, 0.1 * number, len(vector)))
        self.rings["c0.s0"].contribute(number, self.trainer.snapshot(number, samples=8))

    def commit(self, number):
        """The round becomes whole everywhere, and both merge it."""
        for _ in range(6):
            for name, rings in self.rings.items():
                for delivery in self.endpoints[name].poll(0.0):
                    assert rings.on_delivery(delivery)
                assert rings.pump() == []
        committed = m.RoundCommittedMessage(round=number)
        assert self.rings["c0.s0"].on_committed(committed) == [number]
        self.trainer.merge(number, self.rings["c0.s0"].take(number)[0])
        self.trainer.release(number)
        self.follower.merge(self.rings["c1.s0"].on_committed(committed))

    def make(self, *numbers):
        for number in numbers:
            self.follower.follow(number)
            self.train(number)
            self.commit(number)

    def saved(self):
        """c0's state, as for a checkpoint."""
        weights, optimizer = saved(self.trainer)
        return weights, split_outer(optimizer)[1]

    def hand_over(self, saved, anchor_of):
        """Give c1 what `saved` has returned after the round `anchor_of`."""
        weights, outer = saved
        _, rounds = self.rounds("c1.s0", weights)
        rounds.load_outer_state(outer)
        self.follower.adopt(rounds, anchor_of)
        return rounds

    def equal(self, rounds):
        """Whether both have the same anchor, buffers and outer optimizer, bit for bit."""
        mine, theirs = self.trainer.outer_state(), rounds.outer_state()
        return (
            torch.equal(self.trainer.anchor(0), rounds.anchor(0))
            and mine.keys() == theirs.keys()
            and all(torch.equal(mine[key], theirs[key]) for key in mine)
        )


@pytest.mark.parametrize("at", [2, 3, 5])
def test_the_anchor_of_any_round_and_the_averages_since_make_today_s(at):
    pair = Pair()
    saved = pair.saved()
    for number in range(3, 6):
        pair.make(number)
        saved = pair.saved() if number == at else saved
    rounds = pair.hand_over(saved, at)
    assert pair.equal(rounds)
    pair.make(6, 7)
    assert pair.equal(rounds)
    assert (pair.follower.merged, pair.follower.contributed) == (7, 7)


def test_what_it_has_contributed_to_when_the_anchor_comes_is_merged_later():
    pair = Pair()
    pair.make(3)
    saved = pair.saved()
    pair.follower.follow(4)
    pair.train(4)
    rounds = pair.hand_over(saved, 3)
    assert (pair.follower.merged, pair.follower.contributed) == (3, 4)
    pair.commit(4)
    assert pair.equal(rounds)


def test_it_has_no_weight():
    pair = Pair()
    pair.make(3, 4)
    alone = Pair()
    for number in (3, 4):
        alone.train(number)
        alone.follower.follow(number)
        alone.commit(number)
    assert torch.equal(pair.trainer.anchor(0), alone.trainer.anchor(0))
    moved = pair.trainer.anchor(0) - Pair().trainer.anchor(0)
    (segment,) = pair.setups["c0.s0"].segments
    assert moved.abs().max() > 0.1, "the average is c0's progress, not half of it"
    assert segment.parameters


def test_it_takes_part_in_no_round_beyond_the_lag():
    pair = Pair(max_lag=2)
    pair.follower.follow(9)
    assert pair.follower.contributed == 4


def test_an_anchor_from_before_its_first_average_is_of_no_use():
    pair = Pair()
    saved = pair.saved()
    pair.make(3)
    with pytest.raises(RunFailed, match=r"the anchor of round 1 cannot be brought up to date with the rounds \[3\]"):
        pair.hand_over(saved, 1)


def test_it_gives_up_where_rounds_pass_faster_than_the_anchor_comes(monkeypatch):
    monkeypatch.setattr(following, "LEAST_KEPT_BYTES", 0)
    pair = Pair()
    pair.make(*range(3, 3 + MOST_KEPT))
    with pytest.raises(RunFailed, match=f"{MOST_KEPT} rounds have passed"):
        pair.make(3 + MOST_KEPT)


def test_a_small_stage_keeps_many_averages():
    pair = Pair()
    pair.make(*range(3, 3 + 3 * MOST_KEPT))
    saved, last = pair.saved(), 2 + 3 * MOST_KEPT
    assert pair.equal(pair.hand_over(saved, last))
