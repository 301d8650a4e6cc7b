"""Runs with a warm spare, in one thread: it holds the anchor at all times, takes a lost place, and holds up nobody."""

import math
import random
from dataclasses import replace
from itertools import combinations, permutations

import pytest
import torch

from cluster_planner import Link, Node, Spare
from ravnest.driver import instructions as ins
from ravnest.driver.cluster_starts import ClusterStarts, Listening
from ravnest.driver.state_donors import WARM
from ravnest.driver.warm_spares import SpareNeeds, WarmSpares
from ravnest.recovery import RETURNS_S, Replacements
from ravnest.stage import messages as m
from ravnest.stage.assembling import batch_source, joining, place_taken, shadowing, take_place
from ravnest.stage.executor import InlineExecutor
from ravnest.stage.setup import StageAddress
from ravnest.stage.shadowing import ShadowStage
from ring_allreduce.transport import Lane, LinkShape, NodeShape
from ring_timing import layout
from tests.support.local import local_run, setups_by, setups_of, tiny_job
from tests.unit.ravnest.driver.test_in_process_rejoining import anchors_agree

JOB = {"average_every": 48, "stop": {"samples": 600}}
SPARE = "~c1.s1"


class WarmRun:
    """A local run whose processes, warm spares included, are started and ended as the driver does."""

    def __init__(self, job, parts=(2, 2), shadows=(("c1", 1),), **local):
        self.run = run = local_run(job, parts=parts, stands_by=True, **local)
        self.rings, self.job = run.rings, job
        node = Node(name="spare", flops_per_s=1e9, memory_bytes=10**10, up_bytes_per_s=1e7, down_bytes_per_s=1e7)
        fleet = replace(self.rings.plan.fleet, nodes=(*self.rings.plan.fleet.nodes, node))
        self.rings.plan = plan = replace(self.rings.plan, fleet=fleet, spares=(Spare("spare", "", tuple(shadows)),))
        self.told, self.notices, self.listening = [], [], {}
        self.gone, self.stalled = set(), False
        needs = SpareNeeds(
            lambda plan: setups_by(plan, job), lambda *_: None, self.told.append, self.notices.append, lambda *_: {}
        )
        self.warm = WarmSpares(self.rings, run.driver, self, run.donors, run.control.rounds, needs)
        replacements = Replacements(plan, start_s=180.0)
        self.starts = ClusterStarts(replacements, self, needs.setups, needs.check, self.warm)
        follow, take = run.follow, run.take

        def following(instructions):
            for each in instructions:
                follow([each])
                self.starts.observe(each)
                if isinstance(each, ins.RecordClusterLost):
                    self.starts.lost(each, run.control.rounds.epoch, run.now())
                if isinstance(each, ins.RecordClusterTrains):
                    self.starts.replacements.trains(each.cluster, run.now())

        run.follow = following
        forget = run.forget

        def forgetting(name):
            stage = run.stages[name]
            forget(name)
            if isinstance(stage, ShadowStage) and stage.takes_place is not None:
                self._take_place(stage)

        run.forget = forgetting
        run.take = lambda each: None if self.starts.take_of_spare(each, run.now()) else take(each)

    # ClusterProcesses and SpareProcesses, played on the run's network.

    ready, ready_nodes, ends_told = (), (), ()

    def alive(self, plan):
        return set(plan.fleet.names) - self.gone

    def begin_spares(self, plan, setups, nodes):
        for name, setup in setups.items():
            end = self.run.network.endpoint(name, m.codec())
            self.run.stages[name] = shadowing(setup, end, batch_source(setup), self.run.now)
            self.listening[name] = StageAddress(end.address, "host", 1, 1)

    def begin(self, plan, setups):
        for name, setup in setups.items():
            end = self.run.network.endpoint(name, m.codec())
            self.run.stages[name] = joining(setup, end, InlineExecutor(), batch_source(setup), self.run.now)
            self.listening[name] = StageAddress(end.address, "host", 1, 1)

    def prepared(self, stages):
        return {name: self.listening.pop(name) for name in stages if name in self.listening}

    def enter(self, peers, stages):
        for name in stages:
            self.run.stages[name].endpoint.connect(peers)

    def end(self, stages):
        for name in stages:
            if name in self.run.stages:
                self.run.forget(name)

    def renamed(self, before, after):
        pass

    def turn(self):
        run, still = self.run, self.run.stages.get(SPARE) if self.stalled else None
        if still is not None:
            del run.stages[SPARE]
        run.turn()
        if still is not None:
            run.stages[SPARE] = still
        self.starts.shadow(run.now())
        for news in self.starts.turn(self.rings, run.driver, run.control.rounds.epoch, run.now(), math.inf):
            if isinstance(news, Listening):
                run.follow(run.control.join(news.cluster, self.rings.members(news.cluster)))

    def _take_place(self, shadow):
        setup = shadow.setup.successor
        end = self.run.network.endpoint(setup.name, m.codec())
        end.connect({m.DRIVER: self.run.driver.address})
        shadow.endpoint.send(m.DRIVER, Lane.PIPELINE, place_taken(end.address))
        order, source = shadow.takes_place, batch_source(setup)
        self.run.stages[setup.name] = take_place(setup, shadow, order, end, InlineExecutor(), source, self.run.now)

    def until(self, condition, turns=4000, turn_s=0.0):
        for _ in range(turns):
            if condition():
                return
            self.turn()
            self.run.pass_s(turn_s)
        raise AssertionError("it does not come about")

    def lose(self, stage):
        """As DriverLoop loses a stage."""
        if self.starts.returns(stage):
            self.run.control.clusters.returns(stage.split(".")[0])
        self.run.lose(stage)

    def to_the_end(self):
        self.until(lambda: self.run.control.phase is ins.RunPhase.DONE, 20_000)
        return self.run.result

    @property
    def spare(self):
        return self.run.stages[SPARE]

    def holds_today(self):
        """Whether the spare's anchor is that of the stage that it shadows, byte for byte, at the same round."""
        stage, spare = self.run.stages["c1.s1"], self.spare
        if spare.rounds is None or spare.rounds.merged != stage.rounds.merged:
            return False
        return all(
            torch.equal(spare.rounds.anchor(ring), stage.rounds.anchor(ring)) for ring in spare.rounds.rings.segments
        )

    def until_it_holds_another_round(self):
        before = self.run.control.rounds_committed
        self.until(lambda: self.run.control.rounds_committed > before and self.holds_today())


@pytest.mark.parametrize("averaging", [{}, {"outer": {"nesterov": {"lr": 0.7, "momentum": 0.9}}, "wire": "int8"}])
def test_a_spare_holds_the_anchor_at_all_times_and_takes_the_place_at_once(averaging):
    run = WarmRun(tiny_job(**JOB, averaging=averaging))
    run.until(lambda: run.told)
    for _ in range(3):
        run.until_it_holds_another_round()
    run.lose("c1.s1")
    run.until(lambda: run.run.result.trains)
    assert {each.stage: set(each.donors) for each in run.run.result.restored if each.stage[0] != "~"} == {
        "c1.s0": {"itself"},
        "c1.s1": {WARM},
    }
    assert run.rings.plan.cluster("c1").stages[1].node == "spare"
    result = run.to_the_end()
    assert anchors_agree(run.run)
    assert result.losses["c1"][-1] < result.losses["c1"][0]
    told = 4 * sum(len(losses) for losses in result.losses.values())
    assert told - sum(each.samples for each in result.lost) == run.run.control.samples


@pytest.mark.parametrize("parts", [(2, 2), (2, 2, 1)])
def test_a_spare_that_stalls_holds_up_no_round_and_begins_anew_when_it_goes_on(parts):
    run = WarmRun(tiny_job(**{**JOB, "stop": {"samples": 1200}}), parts)
    run.until(lambda: run.told)
    run.stalled, before = True, run.run.control.rounds_committed
    run.until(lambda: run.run.control.rounds_committed == before + 8)
    run.stalled = False
    for _ in range(40):  # seconds: an average that stays away is waited for
        run.turn()
        run.run.pass_s(1.0)
    run.until(lambda: len(run.told) == 2)
    assert any("begins anew" in notice for notice in run.notices)
    run.until_it_holds_another_round()
    assert run.to_the_end().lost == []


def test_a_spare_that_dies_is_told_of_and_nobody_waits():
    run = WarmRun(tiny_job(**JOB))
    run.until(lambda: run.told)
    run.run.forget(SPARE)
    run.starts.ended(SPARE)
    assert run.warm.holding == {}
    assert any("is lost" in notice for notice in run.notices)
    assert run.to_the_end().lost == []
    assert anchors_agree(run.run)


def test_a_spare_whose_node_leaves_ends_and_another_may_follow_it_there_is_one():
    warm = WarmRun(tiny_job(**JOB))
    while not warm.warm.holding:
        warm.turn()
    assert warm.warm.node_of(SPARE) == "spare"
    warm.starts.node_left("spare")
    assert (warm.warm.holding, warm.warm.nodes) == ({}, set())
    assert "'spare' leaves" in warm.notices[-1]


def test_a_spare_that_dies_while_it_takes_the_place_is_followed_by_a_cold_one():
    run = WarmRun(tiny_job(**{**JOB, "stop": {"samples": 1200}}))
    run.until(lambda: run.told)
    run.lose("c1.s1")
    run.until(lambda: "c1.s1" in run.run.stages)
    run.run.forget("c1.s1")
    run.starts.ended("c1.s1")
    run.run.follow(run.run.control.lost("c1.s1", "killed"))
    for each in run.starts.failed("c1", "killed", run.rings, run.run.now()):
        assert each.again_s is not None
    run.run.pass_s(60.0)
    run.until(lambda: run.run.result.trains)
    assert WARM not in {donor for each in run.run.result.restored for donor in each.donors}
    run.to_the_end()
    assert anchors_agree(run.run)


@pytest.mark.parametrize("seed", range(4))
def test_losses_at_any_moment_leave_equal_anchors_and_count_no_sample_twice(seed):
    chance = random.Random(seed)
    run = WarmRun(tiny_job(**JOB, max_lag=1 + seed % 3), parts=(2, 2, 1), shadows=(("c1", 0), ("c1", 1)))
    run.until(lambda: len(run.told) == 2)
    for _ in range(chance.randrange(60)):
        run.turn()
    run.lose(chance.choice(["c1.s0", "c1.s1", "c0.s0"]))
    result = run.to_the_end()
    assert anchors_agree(run.run)
    told = 4 * sum(len(losses) for losses in result.losses.values())
    assert told - sum(each.samples for each in result.lost) == run.run.control.samples


def test_who_takes_a_place_hears_the_driver_however_long_it_takes(monkeypatch):
    run = WarmRun(tiny_job(**JOB))
    run.until(lambda: run.told)
    run.stalled = True  # it cannot answer yet
    run.lose("c1.s1")
    run.until(lambda: not run.warm.holding)
    assert SPARE in run.warm
    sent, send = [], run.run.driver.send
    monkeypatch.setattr(run.run.driver, "send", lambda peer, *rest: (sent.append((peer, rest[1])), send(peer, *rest)))
    for _ in range(5):
        run.run.pass_s(1.0)
        run.turn()
    assert sum(isinstance(message, m.Alive) for peer, message in sent if peer == SPARE) >= 4


VECTOR_S = 15.0
"""What one vector of a stage takes on an uplink, as 9 MB do at 5 Mbit/s."""


def slow_run(monkeypatch):
    """Two clusters of two stages whose rings, and the spare, share uplinks on which a vector takes VECTOR_S. Rounds
    follow each other at once."""
    monkeypatch.setattr(layout, "LEAST_CHUNK_BYTES", 1024)  # a vector is many chunks, as a large one is
    job = tiny_job(model={"factory": "tiny:gpt", "args": {"width": 32}}, average_every=128, stop={"samples": 100_000})
    elements = max(each.elements for each in vectors(job))
    shape = LinkShape(4 * elements / VECTOR_S, 0.01)

    def slow(plan):
        nodes = tuple(replace(node, up_bytes_per_s=shape.bytes_per_s) for node in plan.fleet.nodes)
        pairs = combinations([node.name for node in nodes], 2)
        links = tuple(Link(a, b, shape.latency_s, shape.bytes_per_s) for a, b in pairs)
        return replace(plan, fleet=replace(plan.fleet, nodes=nodes, links=links))

    groups = [("c0.s1", "c1.s1", SPARE), ("c0.s0", "c1.s0")]
    pairs = [pair for group in groups for pair in permutations(group, 2)]
    nodes = {
        name: NodeShape(shape.bytes_per_s, 1e9, {a: shape.bytes_per_s for a, b in pairs if b == name})
        for group in groups
        for name in group
    }
    return WarmRun(job, changed=slow, links=dict.fromkeys(pairs, shape), nodes=nodes)


def vectors(job):
    setups, _ = setups_of(job, parts=(2, 2))
    return [ring for setup in setups.values() for segment in setup.segments for ring in segment.rings]


@pytest.mark.parametrize("later_s", [0.0, 0.4 * VECTOR_S, 1.2 * VECTOR_S])
def test_at_a_slow_uplink_a_warm_spare_trains_long_before_a_vector_could_be_sent(monkeypatch, later_s):
    run = slow_run(monkeypatch)
    run.until(lambda: run.told, turn_s=0.25)
    before = run.run.control.rounds_committed
    run.until(lambda: run.run.control.rounds_committed == before + 2, turn_s=0.25)
    at_s = run.run.now() + later_s  # after the commit of a round, while the next one is under way
    run.until(lambda: run.run.now() >= at_s, turn_s=0.25)
    killed_s = run.run.now()
    run.lose("c1.s1")
    run.until(lambda: run.run.result.trains, turn_s=0.25)
    assert run.run.now() - killed_s < 0.25 * VECTOR_S
    assert {each.stage: set(each.donors) for each in run.run.result.restored} == {"c1.s0": {"itself"}, "c1.s1": {WARM}}
    committed = run.run.control.rounds_committed
    run.until(lambda: run.run.control.rounds_committed == committed + 2, turn_s=0.25)
    assert anchors_agree(run.run)


def test_rounds_wait_only_so_long_for_a_spare_that_does_not_come():
    run = WarmRun(tiny_job(**{**JOB, "stop": {"samples": 2400}}))
    run.until(lambda: run.told)
    run.stalled = True
    run.lose("c1.s1")
    before = run.run.control.rounds_committed
    run.until(lambda: run.run.control.rounds.opened > before, turn_s=0.01)
    at_s = run.run.now() + 0.8 * RETURNS_S
    run.until(lambda: run.run.now() >= at_s, turn_s=0.1)
    assert run.run.control.rounds_committed == before
    run.until(lambda: run.run.control.rounds_committed > before, turns=40, turn_s=0.1)
    run.to_the_end()
    assert anchors_agree(run.run)
