"""Processes of a lost cluster, played by the test: c0 has two stages, c1 one."""

import math
from dataclasses import replace

import pytest

from cluster_planner import Fleet
from ravnest.driver.cluster_starts import ClusterStarts, Listening
from ravnest.driver.instructions import RecordClusterLost, RecordRoundCommitted
from ravnest.driver.run_rings import RunRings
from ravnest.errors import InvalidInput, NodeNotThere, RunFailed
from ravnest.recovery import with_nodes
from ravnest.recovery.orders import StartCluster, TryFailed
from ravnest.recovery.placing import WARM_S
from ravnest.recovery.replacing import FIRST_WAIT_S, LOOK_AGAIN_S, Replacements
from ravnest.recovery.starts import AT_ONE_NODE, MOST_STARTS
from ravnest.stage import messages as m
from ravnest.stage.epoch_messages import NoticeGiven
from ravnest.stage.setup import StageAddress
from ring_allreduce.transport import Delivery, InProcessNetwork, PeerAddress
from tests.support.local import setups_by, setups_of, tiny_job
from tests.unit.ravnest.recovery.test_replacing import slow_machines

HERE = PeerAddress("127.0.0.1", 5000, 5001)


class Processes:
    def __init__(self, plan):
        self.nodes = {node.name for node in plan.fleet.nodes}
        self.begun, self.entered, self.ended, self.answers = [], [], [], {}
        self.refusal, self.ready, self.ready_nodes, self.kept_ready = None, set(), set(), []
        self.ends_told = set()

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

    def keep_ready(self, plan, free, gone):
        self.kept_ready.append((set(free), set(gone)))


class Bench:
    def __init__(self, check=lambda found, nodes: None, there=None):
        setups, plan = setups_of(tiny_job(), parts=(2, 1))
        self.rings = RunRings(plan, setups, dict.fromkeys(setups, HERE))
        self.processes = Processes(plan)
        self.endpoint = InProcessNetwork().endpoint(m.DRIVER, m.codec())
        self.starts = ClusterStarts(
            Replacements(plan, start_s=30.0), self.processes, lambda plan: setups, check, there=there
        )
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


def test_a_node_on_which_a_stage_never_starts_is_done_without():
    bench, now_s = Bench(), 0.0
    replacements = bench.starts.replacements
    own, failing = (stage.node for stage in replacements.plan.cluster("c0").stages)
    for number in range(AT_ONE_NODE):
        now_s += 61.0
        bench.turn(now_s)
        assert len(bench.processes.begun) == number + 1
        bench.processes.answers = {"c0.s1": "no memory"}
        assert isinstance(bench.turn(now_s + 1.0)[0], TryFailed)
        assert not replacements.left
    (order,) = bench.turn(now_s + 61.0)
    assert isinstance(order, StartCluster)
    assert [stage.node for stage in order.plan.cluster("c0").stages] == [own]
    assert replacements.left == {failing}


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


def standing_by(bench):
    lost = RecordClusterLost("c0", "c0.s1", "it died", 0, ("c1",), standing_by=("c0.s0",))
    assert bench.starts.lost(lost, 5, 0.0) == {"c0.s0"}
    return bench


def test_a_stage_that_stands_by_is_not_started_and_speaks_in_the_epoch_of_the_loss():
    bench = standing_by(Bench())
    bench.turn(FIRST_WAIT_S)
    (begun,) = bench.processes.begun
    assert set(begun) == {"c0.s1"}
    bench.listen("c0.s1")
    (news,) = bench.turn(FIRST_WAIT_S + 1.0)
    assert isinstance(news, Listening)
    ((_, entered),) = bench.processes.entered
    assert entered == ["c0.s1"]
    epochs = {name: setup.transport.epoch for name, setup in bench.rings.of_cluster("c0").items()}
    assert epochs == {"c0.s0": 5, "c0.s1": 7}


def test_a_cluster_whose_work_is_averaged_between_its_losses_is_always_started_again():
    bench = Bench()
    for number in range(3 * MOST_STARTS):
        bench.turn(10.0 * number + FIRST_WAIT_S)
        assert len(bench.processes.begun) == number + 1
        bench.listen("c0.s0", "c0.s1")
        bench.turn(10.0 * number + 3.0)
        bench.starts.replacements.trains("c0", 10.0 * number + 4.0)
        for updates in (number, number + 1):
            bench.starts.observe(RecordRoundCommitted(number, 100 * number, {"c0": updates}))
        bench.starts.lost(RecordClusterLost("c0", "c0.s1", "it died", 0, ("c1",)), 5, 10.0 * (number + 1))


def test_where_a_ready_process_waits_nothing_else_is_waited_for():
    bench = Bench()
    bench.processes.ready = {"c0.s1"}
    bench = standing_by(bench)
    bench.turn(0.0)
    (begun,) = bench.processes.begun
    assert set(begun) == {"c0.s1"}


def test_a_ready_process_of_one_stage_does_not_hurry_the_start_of_two():
    bench = Bench()
    bench.processes.ready = {"c0.s0"}
    lost = RecordClusterLost("c0", "c0.s1", "it is silent", 0, ("c1",))
    bench.starts.lost(lost, 5, 0.0)
    bench.turn(0.0)
    assert bench.processes.begun == []
    bench.turn(FIRST_WAIT_S)
    assert len(bench.processes.begun) == 1


def test_two_processes_that_end_together_are_both_replaced_by_ready_ones():
    bench = Bench()
    bench.processes.ready = {"c0.s0", "c0.s1"}
    standing_by(bench).starts.ended("c0.s0")
    bench.turn(0.0)
    (begun,) = bench.processes.begun
    assert set(begun) == {"c0.s0", "c0.s1"}


def test_processes_are_kept_ready_where_nothing_runs_and_not_on_nodes_that_left():
    bench = Bench(there=lambda plan: answers.pop(0)())
    plan = bench.starts.replacements.plan
    waits, trains = ([stage.node for stage in plan.cluster(name).stages] for name in ("c0", "c1"))

    def silent():
        raise RunFailed("Ray has not said yet")

    answers = [silent, lambda: {*waits, *trains}, lambda: set(trains), lambda: {*waits, *trains}]
    bench.starts.shadow(0.0, trains=False)
    bench.starts.shadow(1.0)
    assert bench.processes.kept_ready == [], "nothing was asked, and nothing answered"
    bench.starts.shadow(2.0)
    bench.starts.shadow(3.0)
    assert bench.processes.kept_ready == [(set(waits), set())], "the first cluster waits, so its nodes are free"
    bench.starts.replacements.node_left(waits[0])
    bench.starts.shadow(2.0 + LOOK_AGAIN_S)
    assert len(bench.processes.kept_ready) == 1, "that answer is as old as the look before"
    bench.starts.shadow(2.1 + LOOK_AGAIN_S)
    assert bench.processes.kept_ready[1:] == [(set(waits[1:]), {waits[0]})]


class Spares:
    """Warm spares that are played: `~c0.s1` on the node `spare`."""

    def __init__(self):
        self.holding, self.nodes, self.alive, self.left = {}, set(), [], []
        self.node_left = self.left.append

    def __contains__(self, name):
        return name == "~c0.s1"

    def node_of(self, name):
        return "spare"

    def turn(self, alive, now_s):
        self.alive.append(alive(None))

    def take(self, delivery, now_s):
        return None


def test_no_spare_stays_or_begins_on_a_node_that_leaves():
    bench = Bench()
    bench.starts.warm = spares = Spares()
    first, *others = sorted(bench.processes.nodes)
    bench.starts.node_left(first)
    bench.starts.shadow(0.0)
    assert (spares.left, spares.alive) == ([first], [set(others)])


def test_a_spare_whose_process_is_asked_to_end_takes_its_node_out_of_the_run():
    bench = Bench()
    bench.starts.warm = spares = Spares()
    bench.processes.nodes.add("spare")
    assert bench.starts.take_of_spare(Delivery("~c0.s1", 0, NoticeGiven(), ()), 1.0)
    assert (spares.left, bench.starts.replacements.left) == (["spare"], {"spare"})
    assert not bench.starts.take_of_spare(Delivery("c1.s0", 0, NoticeGiven(), ()), 1.0), "it is a stage"


def test_none_is_made_where_a_stage_stands_by():
    bench = Bench(there=lambda plan: nodes)
    plan = bench.starts.replacements.plan
    stands = plan.cluster("c0").stages[0].node
    nodes = {node.name for node in plan.fleet.nodes}
    standing_by(bench)
    bench.starts.shadow(0.0)
    bench.starts.shadow(0.5)
    assert bench.processes.kept_ready == [(nodes - {stands, plan.cluster("c1").stages[0].node}, set())]


@pytest.mark.parametrize("told", ["with a ready process", "without one", "later", ""])
def test_a_ready_process_of_a_machine_that_may_stand_still_promises_nothing(told):
    bench = Bench()
    bench.processes.ready_nodes = {bench.rings.plan.cluster("c0").stages[1].node}
    if told == "with a ready process":
        bench.processes.ready = {"c0.s1"}
    if told == "without one":
        bench.processes.ends_told = {"c0.s1"}
    standing_by(bench)
    if told == "later":
        bench.starts.ended("c0.s1")
    rest_s = WARM_S + 6.0
    said = bench.starts.turn(bench.rings, bench.endpoint, 7, FIRST_WAIT_S, rest_s)
    assert (len(bench.processes.begun) == 1) is bool(told)
    assert told or "the run ends in" in said[0].reason, "it is taken to start as one that has to load"


def test_where_a_machine_was_gone_in_between_what_waits_there_counts():
    there = []
    bench = standing_by(Bench(there=lambda plan: there.pop(0)))
    plan = bench.rings.plan
    nodes, silent = {node.name for node in plan.fleet.nodes}, plan.cluster("c0").stages[1].node
    bench.processes.ready_nodes = {silent}
    there += [nodes, nodes - {silent}]
    bench.starts.shadow(0.0)
    bench.starts.shadow(0.5)
    bench.starts.turn(bench.rings, bench.endpoint, 7, FIRST_WAIT_S, WARM_S + 6.0)
    assert len(bench.processes.begun) == 1


def test_one_that_ends_while_it_stands_by_is_started_too():
    bench = standing_by(Bench())
    bench.starts.ended("c0.s0")
    bench.turn(FIRST_WAIT_S)
    (begun,) = bench.processes.begun
    assert set(begun) == {"c0.s0", "c0.s1"}


def test_one_that_ends_while_others_start_costs_the_try_and_all_are_started():
    bench = standing_by(Bench())
    bench.turn(FIRST_WAIT_S)
    bench.starts.ended("c0.s0")
    (failed,) = bench.turn(FIRST_WAIT_S + 1.0)
    assert "c0.s0, which stood by, has ended" in failed.reason
    bench.turn(FIRST_WAIT_S + 1.0 + failed.again_s)
    assert set(bench.processes.begun[-1]) == {"c0.s0", "c0.s1"}


def test_a_cluster_that_has_no_place_leaves_nobody_standing_by():
    bench = standing_by(Bench())
    bench.processes.nodes -= {bench.rings.plan.cluster("c0").stages[1].node}
    bench.starts.replacements.node_left(bench.rings.plan.cluster("c0").stages[0].node)
    bench.turn(FIRST_WAIT_S)
    assert ["c0.s0", "c0.s1"] in bench.processes.ended


class Recut(Bench):
    """c0 has lost the node of its second stage for good. `refuses` says why a start is refused, where it is."""

    def __init__(self):
        super().__init__()
        self.job = tiny_job()
        self.before = self.rings.plan
        self.gone = self.before.cluster("c0").stages[1].node
        replacements = Replacements(self.before, start_s=30.0)
        self.starts = ClusterStarts(replacements, self.processes, self.setups, lambda found, nodes: None)
        self.processes.nodes -= {self.gone}
        replacements.lost("c0", 0, 0.0)
        self.unfit = False

    def setups(self, plan):
        made = setups_by(plan, self.job)
        if self.unfit:
            return {
                name: replace(setup, segments=tuple(replace(one, parameters=()) for one in setup.segments))
                for name, setup in made.items()
            }
        return made

    def consistent(self):
        """Whether the stages of each cluster are those that the plan has."""
        plan = self.rings.plan
        return all(len(self.rings.of_cluster(each.name)) == len(each.stages) for each in plan.clusters)


@pytest.mark.parametrize("unfit", [True, False])
def test_cuts_that_cannot_be_are_forgotten_and_do_not_hinder_other_clusters(unfit):
    bench = Recut()
    if unfit:
        bench.unfit = True
    else:
        bench.processes.refusal = NodeNotThere("no live Ray node is 'desk'")
    (failed,) = bench.turn(FIRST_WAIT_S)
    assert isinstance(failed, TryFailed)
    assert bench.starts.replacements.plan == bench.rings.plan == bench.before
    bench.unfit, bench.processes.refusal = False, None
    bench.starts.replacements.lost("c1", 0, FIRST_WAIT_S)
    now_s = 2 * FIRST_WAIT_S
    bench.turn(now_s)
    assert bench.consistent()
    assert set(bench.processes.begun[0]) == {"c1.s0"}
    bench.turn(now_s + failed.again_s)
    assert [list(each) for each in bench.processes.begun[1:]] == [["c0.s0"]]
    assert bench.consistent()


def test_a_further_cluster_that_is_refused_is_tried_again_and_the_run_does_not_have_it_before():
    bench = Bench()
    plan = bench.rings.plan = slow_machines(bench.rings.plan)
    replacements = Replacements(plan, start_s=30.0, further=["j0"])
    bench.starts = ClusterStarts(
        replacements, bench.processes, lambda made: setups_by(made, tiny_job()), lambda *_: None
    )
    node = replace(plan.fleet.nodes[0], name="new", flops_per_s=1e8)
    grown = with_nodes(plan, Fleet((node,)), ["new"])
    bench.processes.nodes.add("new")
    replacements.lost("c1", 0, 0.0)
    replacements.node_joined(grown, "new", 0.0)
    assert bench.turn(FIRST_WAIT_S) == [], "c1 is started where it was"
    bench.processes.refusal = NodeNotThere("no live Ray node is 'new'")
    (failed,) = bench.turn(LOOK_AGAIN_S)
    assert isinstance(failed, TryFailed)
    assert (failed.cluster, replacements.plan) == ("j0", grown)
    bench.processes.refusal = None
    (order,) = bench.turn(LOOK_AGAIN_S + failed.again_s)
    assert isinstance(order, StartCluster)
    assert set(bench.rings.of_cluster("j0")) == {"j0.s0"}
