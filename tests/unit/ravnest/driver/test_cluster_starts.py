"""Processes of a lost cluster, played by the test: c0 has two stages, c1 one."""

import math

from ravnest.driver.cluster_starts import ClusterStarts, Listening
from ravnest.driver.run_rings import RunRings
from ravnest.errors import InvalidInput
from ravnest.recovery.replacing import FIRST_WAIT_S, Replacements, TryFailed
from ravnest.stage import messages as m
from ravnest.stage.setup import StageAddress
from ring_allreduce.transport import InProcessNetwork, PeerAddress
from tests.support.local import setups_of, tiny_job

HERE = PeerAddress("127.0.0.1", 5000, 5001)


class Processes:
    def __init__(self, plan):
        self.nodes = {node.name for node in plan.fleet.nodes}
        self.begun, self.entered, self.ended, self.answers = [], [], [], {}
        self.refusal = None

    def alive(self, plan):
        return self.nodes

    def begin(self, plan, setups):
        if self.refusal is not None:
            raise self.refusal
        self.begun.append(dict(setups))

    def prepared(self, stages):
        return {stage: self.answers.pop(stage) for stage in stages if stage in self.answers}

    def enter(self, peers, stages):
        self.entered.append((peers, stages))

    def end(self, stages):
        self.ended.append(stages)


class Bench:
    def __init__(self, check=lambda found, nodes: None):
        setups, plan = setups_of(tiny_job(), parts=(2, 1))
        self.rings = RunRings(plan, setups, dict.fromkeys(setups, HERE))
        self.processes = Processes(plan)
        self.endpoint = InProcessNetwork().endpoint(m.DRIVER, m.codec())
        self.starts = ClusterStarts(Replacements(plan, start_s=30.0), self.processes, lambda plan: setups, check)
        self.starts.replacements.lost("c0", 0, 0.0)

    def turn(self, now_s):
        return self.starts.turn(self.rings, self.endpoint, 7, now_s, math.inf)

    def listen(self, *stages):
        self.processes.answers |= {stage: StageAddress(HERE, "host", 1, 4, (240, 10)) for stage in stages}


def test_processes_are_started_in_this_epoch_and_join_when_all_listen():
    bench = Bench()
    assert bench.turn(FIRST_WAIT_S) == []
    (begun,) = bench.processes.begun
    assert set(begun) == {"c0.s0", "c0.s1"}
    assert all((setup.transport.joins, setup.transport.epoch) == (True, 7) for setup in begun.values())
    bench.listen("c0.s1")
    assert bench.turn(3.0) == []
    bench.listen("c0.s0")
    (news,) = bench.turn(4.0)
    assert isinstance(news, Listening)
    assert news.cluster == "c0"
    assert set(news.nodes) == {"c0.s0", "c0.s1"}
    ((peers, stages),) = bench.processes.entered
    assert set(peers) == {"c0.s0", "c0.s1", m.DRIVER}
    assert stages == ["c0.s0", "c0.s1"]
    assert bench.turn(5.0) == []


def test_a_process_that_cannot_start_ends_the_try_and_those_beside_it():
    bench = Bench()
    bench.turn(FIRST_WAIT_S)
    bench.processes.answers = {"c0.s1": "no module named tiny"}
    (failed,) = bench.turn(3.0)
    assert isinstance(failed, TryFailed)
    assert failed.reason == "c0.s1 could not start: no module named tiny"
    assert bench.processes.ended == [["c0.s0", "c0.s1"]]
    assert bench.turn(3.0 + (failed.again_s or 0.0)) == []
    assert len(bench.processes.begun) == 2


def test_a_node_that_is_gone_meanwhile_ends_the_try():
    bench = Bench()
    bench.processes.refusal = InvalidInput("no live Ray node is 'tower'")
    (failed,) = bench.turn(FIRST_WAIT_S)
    assert failed.reason == "no live Ray node is 'tower'"


def test_processes_that_read_other_data_do_not_join():
    def check(found, nodes):
        raise InvalidInput("'tower' reads other data")

    bench = Bench(check)
    bench.turn(FIRST_WAIT_S)
    bench.listen("c0.s0", "c0.s1")
    (failed,) = bench.turn(3.0)
    assert failed.reason == "'tower' reads other data"
    assert bench.processes.entered == []


def test_processes_that_take_too_long_are_ended():
    bench = Bench()
    bench.turn(FIRST_WAIT_S)
    (failed,) = bench.turn(40.0)
    assert isinstance(failed, TryFailed)
    assert bench.processes.ended == [["c0.s0", "c0.s1"]]
