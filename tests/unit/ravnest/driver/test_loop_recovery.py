"""The driver's loop as clusters come and go: the processes of stages are the test's."""

import pytest

from cluster_planner import Fleet, Node
from ravnest.driver.arrivals import NodeArrivals
from ravnest.driver.cluster_starts import ClusterStarts
from ravnest.driver.departures import NodeDepartures
from ravnest.driver.instructions import RunPhase
from ravnest.driver.liars import Found, LiarWatch
from ravnest.driver.loop_parts import Recovery
from ravnest.driver.node_requests import NodeRequest, RunRequest
from ravnest.driver.observe.place_events import ClusterReplannedEvent
from ravnest.driver.observe.report import (
    ClusterLostEvent,
    ClusterReplacedEvent,
    NoticeEvent,
    ReplacementFailedEvent,
)
from ravnest.driver.ray.stage_actors import StageEnded, StageOutcome
from ravnest.driver.slow_nodes import SlowNodes
from ravnest.driver.state_donors import StateDonors
from ravnest.driver.state_handover import SavedState, StateHandover
from ravnest.errors import Interrupted
from ravnest.recovery import NodesLeft
from ravnest.recovery.replacing import FIRST_WAIT_S, Replacements
from ravnest.stage import epoch_messages as em
from ravnest.stage import messages as m
from ravnest.stage.setup import StageAddress
from ring_allreduce.transport import PeerAddress
from tests.support.local import setups_by
from tests.unit.ravnest.driver.test_loop import STAGES, Bench, InlineDisk

HERE = PeerAddress("127.0.0.1", 5000, 5001)


class Processes:
    """Processes that listen as soon as they are begun, unless they are `slow`."""

    def __init__(self):
        self.begun, self.ended, self.slow, self.ready, self.ready_nodes, self.ends_told = [], [], False, (), (), ()

    def alive(self, plan):
        return {node.name for node in plan.fleet.nodes}

    def begin(self, plan, setups):
        self.begun += setups

    def prepared(self, stages):
        return {} if self.slow else {stage: StageAddress(HERE, "host", 1, 4) for stage in stages}

    def enter(self, peers, stages): ...

    def end(self, stages):
        self.ended += stages


class Recovering(Bench):
    """A bench whose loop starts lost clusters anew. c0 has two stages, c1 one."""

    better = False

    def recovery(self, driver, outbox):
        self.processes, self.asked, self.handed, self.remembered = Processes(), [], [], []

        def read(order, setups):
            self.handed.append(order)
            return SavedState({}, order.round)

        def requests():
            asked, self.asked = self.asked, []
            return asked

        self.left = NodesLeft()
        replacements = Replacements(self.plan, start_s=30.0, left=self.left)
        starts = ClusterStarts(
            replacements,
            self.processes,
            lambda plan: setups_by(plan, self.job),
            lambda found, nodes: None,
        )
        return Recovery(
            starts,
            StateDonors(self.rings, driver, lambda restored: None),
            StateHandover(read, InlineDisk(), outbox, driver),
            NodeArrivals(replacements, self.record),
            NodeDepartures(starts, self.control, self.rings, self.record, self.left),
            SlowNodes(replacements, self.record),
            requests,
            remember=lambda: self.remembered.append(({*replacements.plan.fleet.names}, self.left.names)),
            anew=self.considered,
        )

    def considered(self, now_s, rest_s):
        return self.control.begin_again("another plan makes more") if self.better else []

    def node(self, stage):
        return self.plan.cluster(stage[:2]).stages[int(stage[-1])].node

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    def lose_and_rejoin(self):
        """c0 is lost, and its new processes listen; c1 answers in both epochs."""
        self.start()
        self.news.ends.append(StageEnded("c0.s1", None, "its process was killed"))
        self.turn(after_s=1.0)
        self.say("c1.s0", em.RoundsHeld(epoch=1, holding=()))
        self.turn(after_s=FIRST_WAIT_S)
        self.turn(after_s=0.1)
        for stage in ("c0.s0", "c0.s1"):
            self.stages[stage].epoch = 1
            self.heard(stage)


@pytest.fixture
def bench(tmp_path):
    made = Recovering(tmp_path)
    yield made
    made.writer.close()


def test_a_lost_cluster_joins_follows_and_trains_again(bench):
    bench.lose_and_rejoin()
    assert bench.processes.begun == ["c0.s0", "c0.s1"]
    (told,) = [each for each in bench.heard("c1.s0") if isinstance(each, em.RingsReformedMessage) and each.epoch == 2]
    assert {peer.stage for peer in told.peers} == set(STAGES)
    for stage in STAGES:
        bench.say(stage, em.RoundsHeld(epoch=2, holding=()))
    bench.turn(after_s=0.1)
    assert em.FollowRounds(up_to=0) in bench.heard("c0.s1")
    for stage in ("c0.s0", "c0.s1"):
        bench.say(stage, m.StageStarted(process_bytes=1))
    bench.turn(after_s=0.1)
    assert bench.heard("c0.s0")[-1] == em.TrainFrom(round=0, version=0)
    (event,) = bench.of(ClusterReplacedEvent)
    assert (event.cluster, event.round, set(event.nodes)) == ("c0", 0, {"c0.s0", "c0.s1"})
    assert bench.control.clusters.training == ["c1", "c0"]


def test_who_comes_and_who_goes_is_written_down_before_anything_comes_of_it(bench):
    bench.start()
    node = Node(name="new", flops_per_s=1e9, memory_bytes=10**9, up_bytes_per_s=1e6, down_bytes_per_s=1e6)
    bench.asked = [NodeRequest("join", "new", fleet=Fleet((node,)))]
    bench.turn(after_s=1.0)
    known, left = bench.remembered[-1]
    assert "new" in known
    assert not left
    bench.say("c1.s0", em.NoticeGiven())
    bench.turn(after_s=1.0)
    assert bench.remembered[-1] == (known, {bench.node("c1.s0")})


def test_what_the_process_before_sends_late_has_no_effect(bench):
    bench.lose_and_rejoin()
    bench.stages["c0.s1"].epoch = 0
    bench.say("c0.s1", m.Updated(update=99, staleness=(0,), losses=(1.0,), lr=0.1))
    bench.say("c0.s0", em.RoundsHeld(epoch=2, holding=()))
    bench.turn(after_s=0.1)
    assert bench.control.updates["c0"] == 0


def test_a_newcomer_that_fails_costs_itself_alone_and_is_started_again(bench):
    bench.lose_and_rejoin()
    bench.news.ends.append(StageEnded("c0.s0", StageOutcome("out of memory", "Traceback: many lines")))
    bench.turn(after_s=1.0)
    (failed,) = bench.of(ReplacementFailedEvent)
    assert failed.reason.startswith("c0.s0: out of memory (details in ")
    assert bench.processes.ended == ["c0.s0", "c0.s1"]
    for _ in range(5):
        bench.say("c1.s0", m.Alive())
        bench.turn(after_s=1.0)
    assert bench.processes.begun == ["c0.s0", "c0.s1"] * 2
    assert len(bench.of(ClusterLostEvent)) == 1


def test_a_node_that_leaves_takes_its_cluster_out_with_notice(bench):
    bench.start()
    leaves = NodeRequest("leave", bench.node("c1.s0"), "its hours are 18-22 UTC")
    bench.asked = [leaves, NodeRequest("leave", "nobody")]
    bench.turn(after_s=1.0)
    assert bench.heard("c1.s0") == [m.Drain()]
    bench.say("c1.s0", m.Drained(micro_batches=0, updates=0))
    bench.turn(after_s=1.0)
    (event,) = bench.of(ClusterLostEvent)
    assert (event.cluster, event.samples, event.with_notice) == ("c1", 0, True)
    assert any("no node of the plan is named 'nobody'" in each.text for each in bench.of(NoticeEvent))
    assert any("leaves (its hours are 18-22 UTC)" in each.text for each in bench.of(NoticeEvent))
    for _ in range(5):
        bench.say("c0.s0", m.Alive())
        bench.turn(after_s=1.0)
    assert bench.processes.begun == [], "its node has left"
    bench.asked = [NodeRequest("join", bench.node("c1.s0"))]
    bench.turn(after_s=1.0)
    bench.turn(after_s=1.0)
    assert bench.processes.begun == ["c1.s0"]


def leave(bench, node):
    """The node leaves, c0 drains, and what is left of it is started anew; c1 answers."""
    bench.start()
    bench.asked = [NodeRequest("leave", node)]
    bench.turn(after_s=1.0)
    bench.say("c0.s0", m.Drained(micro_batches=0, updates=0))
    bench.turn(after_s=1.0)
    bench.say("c1.s0", em.RoundsHeld(epoch=1, holding=()))
    bench.turn(after_s=FIRST_WAIT_S)
    bench.turn(after_s=0.1)


def test_a_cluster_without_one_of_its_nodes_goes_on_with_fewer_stages(bench):
    leave(bench, bench.node("c0.s1"))
    (event,) = bench.of(ClusterReplannedEvent)
    count = len(bench.plan.costs.units)
    assert (event.cluster, event.how, event.units) == ("c0", "other cuts", {"c0.s0": (0, count)})
    assert event.nodes == {"c0.s0": bench.node("c0.s0")}
    assert bench.node("c0.s1") in event.reason
    assert bench.processes.begun == ["c0.s0"]
    (told,) = [each for each in bench.heard("c1.s0") if isinstance(each, em.RingsReformedMessage) and each.epoch == 2]
    assert all(ring.members == ("c0.s0", "c1.s0") for ring in told.rings)
    for stage in ("c0.s0", "c1.s0"):
        bench.stages[stage].epoch = 2
        bench.say(stage, em.RoundsHeld(epoch=2, holding=()))
    bench.say("c0.s0", m.StageStarted(process_bytes=1))
    bench.turn(after_s=0.1)
    bench.say("c0.s0", m.Updated(update=0, staleness=(0,), losses=(1.0,), lr=0.1))
    bench.turn(after_s=0.1)
    assert bench.control.updates["c0"] == 1, "it is the last stage too"
    assert bench.record.stages == ("c1.s0", "c0.s0")


def test_nothing_is_started_that_would_train_for_less_than_an_update_before_the_end(bench):
    bench.start()
    bench.say("c1.s0", m.Updated(update=18, staleness=(0,), losses=(1.0,), lr=0.1))
    bench.turn(after_s=1.0)
    bench.news.ends.append(StageEnded("c0.s1", None, "its process was killed"))
    bench.turn(after_s=1.0)
    bench.turn(after_s=FIRST_WAIT_S)
    (failed,) = bench.of(ReplacementFailedEvent)
    assert "the run ends in" in failed.reason
    assert bench.processes.begun == []


def test_nothing_goes_on_starting_on_a_node_that_leaves(bench):
    bench.processes.slow = True
    bench.lose_and_rejoin()
    assert bench.processes.begun == ["c0.s0", "c0.s1"]
    assert bench.processes.ended == []
    bench.asked = [NodeRequest("leave", bench.node("c0.s0"))]
    bench.turn(after_s=1.0)
    assert bench.processes.ended[:2] == ["c0.s0", "c0.s1"]
    failed = bench.of(ReplacementFailedEvent)[0]
    assert failed.reason == f"node {bench.node('c0.s0')!r} leaves"


def test_the_notice_of_a_process_is_its_node_s(bench):
    bench.start()
    bench.say("c1.s0", em.NoticeGiven())
    bench.turn(after_s=1.0)
    assert bench.heard("c1.s0") == [m.Drain()]
    bench.say("c0.s1", em.NoticeGiven())
    bench.turn(after_s=1.0)
    assert m.Drain() not in bench.heard("c0.s0"), "nobody else would stay"
    assert any("c0 goes on, and what it has made is saved" in each.text for each in bench.of(NoticeEvent))


def test_a_run_does_what_its_user_asks_from_another_terminal(bench):
    bench.start()
    bench.say("c1.s0", m.Updated(update=0, staleness=(0,), losses=(1.0,), lr=0.1))
    bench.turn(after_s=0.1)
    bench.asked = [RunRequest("checkpoint"), RunRequest("evaluate")]
    bench.turn(after_s=1.0)
    assert m.RoundOpenedMessage(round=1) in bench.heard("c1.s0")
    bench.asked = [RunRequest("stop")]
    bench.turn(after_s=1.0)
    bench.turn(after_s=1.0)
    assert m.Drain() in bench.heard("c1.s0")
    bench.asked = [RunRequest("stop_now")]
    with pytest.raises(Interrupted, match="--resume"):
        bench.turn(after_s=1.0)


@pytest.mark.parametrize("proven", [True, False])
def test_who_is_proven_to_lie_is_not_started_again_and_its_nodes_stay_out(tmp_path, monkeypatch, proven):
    found = [Found("c0.s1", "it lied", spoils=True)]

    class Watch(LiarWatch):
        def found(self):
            self.shut_out |= {"c0"} if found and proven else set()
            return [found.pop()] if found else []

    monkeypatch.setattr("ravnest.driver.loop.LiarWatch", Watch)
    bench = Recovering(tmp_path)
    bench.start()
    bench.turn(after_s=1.0)
    bench.say("c1.s0", em.RoundsHeld(epoch=1, holding=()))
    bench.turn(after_s=FIRST_WAIT_S)
    bench.turn(after_s=0.1)
    bench.writer.close()
    assert [event.reason for event in bench.of(ClusterLostEvent)] == ["it lied"]
    assert bench.processes.begun == ([] if proven else ["c0.s0", "c0.s1"])
    assert set(bench.left.liars) == ({bench.node("c0.s0"), bench.node("c0.s1")} if proven else set())


def test_a_run_for_which_another_plan_makes_more_is_saved_and_begins_again(bench):
    bench.start()
    bench.turn()
    assert bench.control.phase is RunPhase.TRAINING
    bench.better = True
    bench.turn()
    assert bench.control.phase is RunPhase.DRAINING
    assert bench.control.begins_again == "another plan makes more"
    assert [m.Drain() in bench.heard(stage) for stage in STAGES] == [True, False, True]
    assert bench.of(ClusterLostEvent) == []
