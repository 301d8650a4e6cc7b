"""Runs whose driver is gone at any moment, and that another one takes over: nothing is started anew, nothing counts
twice, and all anchors are equal."""

import random
import socket
import threading
from types import SimpleNamespace

import pytest
import torch

from ravnest.driver.instructions import RunPhase
from ravnest.driver.remembering import changing, state_of
from ravnest.driver.run_store import SessionStart
from ravnest.driver.session import run_control
from ravnest.driver.standing import Standing
from ravnest.driver.taking_over import any_reached
from ravnest.errors import NodeLost
from ravnest.recovery import NodesLeft
from ravnest.stage.setup import StageAddress
from tests.support.local import local_run, setups_of, tiny_job

JOB = {"average_every": 48, "stop": {"samples": 360}, "evaluate_every": 100}


class Crash(Exception):
    """The driver is killed."""


class TakenOver:
    """A run whose drivers are killed."""

    def __init__(self, parts, *, stands_by=False, **changes):
        self.job = tiny_job(**{**JOB, **changes})
        self.stands_by = stands_by
        self.run = local_run(self.job, parts=parts, stands_by=stands_by)
        self.setups, self.plan = setups_of(self.job, parts=parts)
        self.term = 0
        self.run.remember = self.remember
        self.remember()

    def remember(self):
        run = self.run
        places = {name: StageAddress(stage.endpoint.address, "here", 1, 1) for name, stage in run.stages.items()}
        there = {name: places.get(name, StageAddress(run.driver.address, "here", 1, 1)) for name in self.setups}
        rings = SimpleNamespace(plan=self.plan, setups=self.setups)
        changed = changing(run.control, rings, there, {}, SimpleNamespace(training_s=0.0), NodesLeft())
        fixed = {"plan": "", "data": "", "address": None, "token": "", "keys": None, "timeline": False, "shares": {}}
        self.state = state_of({**fixed, "term": self.term, "start": SessionStart()}, changed, {})

    def forward(self, turns):
        for _ in range(turns):
            if self.run.control.phase is not RunPhase.DONE:
                self.run.turn()

    def crash_after(self, sends):
        """Let the driver send so many messages more, and then no others."""
        left, send = sends, self.run.driver.send

        def counted(*arguments):
            nonlocal left
            if left == 0:
                raise Crash
            left -= 1
            send(*arguments)

        self.run.driver.send = counted
        with pytest.raises(Crash):
            self.forward(10_000)

    def take_over(self):
        self.term += 1
        state = self.state

        def standing_at(positions):
            counts = {cluster.name: len(cluster.stages) for cluster in self.plan.clusters}
            standing = Standing.of(state, positions, counts)
            self.standing = standing
            total = self.job.stop.samples
            arguments = self.plan, self.job, self.setups, 10, total, state.start
            return run_control(*arguments, stands_by=self.stands_by, standing=standing), standing

        self.run.take_over(self.term, standing_at)

    def anchors_agree(self):
        held = {}
        for stage in self.run.stages.values():
            for segment in stage.setup.segments:
                held.setdefault(segment.ring, []).append(stage.rounds.anchor(segment.ring))
        return all(torch.equal(first, other) for first, *others in held.values() for other in others)

    def check_end(self):
        run = self.run
        assert run.control.phase is RunPhase.DONE
        assert self.anchors_agree()
        assert run.control.samples == 12 * sum(run.control.updates.values()) >= 360
        assert run.control.accounts.averaged == dict(run.control.updates)
        for name, stage in run.stages.items():
            machine = getattr(stage, "runtime", stage).machine
            assert machine.version == run.control.updates[name.partition(".")[0]]


@pytest.mark.parametrize("seed", range(6))
def test_a_driver_that_is_killed_at_any_moment_leaves_a_run_that_another_one_ends(seed):
    chance = random.Random(seed)
    drivers = TakenOver(chance.choice([(1, 1), (2, 1), (2, 2)]), max_lag=chance.choice([1, 2]))
    for _ in range(3):
        drivers.forward(chance.randrange(30))
        if drivers.run.control.phase is RunPhase.DONE:
            break
        before = {name: stage.machine.version for name, stage in drivers.run.stages.items()}
        drivers.crash_after(chance.randrange(25))
        for _ in range(chance.randrange(20)):  # the stages go on without a driver
            for stage in drivers.run.stages.values():
                stage.turn(0.0)
        drivers.take_over()
        assert all(drivers.run.stages[name].machine.version >= made for name, made in before.items())
        assert drivers.run.result.lost == []
    drivers.run.run()
    drivers.check_end()


@pytest.mark.parametrize("seed", range(4))
def test_a_cluster_that_is_gone_with_the_driver_is_lost_and_may_come_back(seed):
    chance = random.Random(seed)
    drivers = TakenOver((2, 2))
    drivers.forward(30 + chance.randrange(30))
    drivers.crash_after(chance.randrange(25))
    drivers.run.switch_off("c1.s1")
    drivers.take_over()
    assert [each.cluster for each in drivers.run.result.lost] == ["c1"]
    drivers.forward(3)
    drivers.run.rejoin("c1")
    while not drivers.run.result.trains and drivers.run.control.phase is RunPhase.TRAINING:
        drivers.run.turn()
    drivers.run.run()
    drivers.check_end()


def test_without_any_whole_cluster_there_is_nothing_to_take_over():
    drivers = TakenOver((1, 2))
    drivers.forward(40)
    drivers.run.switch_off("c0.s0")
    drivers.run.switch_off("c1.s0")
    with pytest.raises(NodeLost, match="not there when another driver"):
        drivers.take_over()
    assert drivers.standing.whole == []


def test_a_run_that_was_draining_ends_with_the_driver_that_takes_it_over():
    drivers = TakenOver((1, 2))
    while drivers.run.control.phase is RunPhase.TRAINING:
        drivers.run.turn()
    drivers.take_over()
    assert drivers.standing.draining == {"c0", "c1"}
    assert drivers.standing.stopping
    drivers.run.run()
    assert drivers.run.control.begins_again is None
    drivers.check_end()


def test_where_only_a_cluster_is_left_that_was_leaving_all_is_saved_and_the_run_begins_again():
    drivers = TakenOver((1, 2))
    run = drivers.run
    while run.control.rounds_committed < 1:
        run.turn()
    run.follow(run.control.leave("c1", "it was asked to"))
    run.turn()
    drivers.remember()
    run.switch_off("c0.s0")
    drivers.take_over()
    assert (drivers.standing.draining, drivers.standing.stopping) == ({"c1"}, False)
    run.run()
    assert run.control.begins_again is not None
    assert not run.control.stopping
    assert run.control.accounts.averaged == dict(run.control.updates), "nothing that c1 has made is lost"
    assert run.result.begun[-1].updates == dict(run.control.updates), "and it is in the last checkpoint"
    assert run.result.checkpoints


def test_places_are_tried_together(monkeypatch):
    together = threading.Barrier(3, timeout=30.0)

    def connect(place, timeout):
        together.wait()
        if place[1] != 2:
            raise ConnectionRefusedError
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(socket, "create_connection", connect)
    assert any_reached(("desk", port) for port in (1, 2, 3))
    assert not any_reached(("desk", port) for port in (1, 3, 4))
