"""The driver's loop on a network in memory, with stages that the test plays, and with real ones."""

import json
from concurrent.futures import Executor, Future
from types import SimpleNamespace

import pytest
import torch

from ravnest.checkpoints.run_folder import RunFolder
from ravnest.driver import control as c
from ravnest.driver.checkpoint_collector import CheckpointCollector
from ravnest.driver.fail_stop import FailStop
from ravnest.driver.loop import DriverLoop, StageLinks
from ravnest.driver.observe.record import RunRecord
from ravnest.driver.observe.report import MetricsWriter, read_metrics
from ravnest.driver.preparation import ResumedRun, needed, states_for, writer_opener
from ravnest.driver.ray.stage_actors import StageEnded, StageOutcome
from ravnest.driver.session import run_control
from ravnest.errors import NodeLost, RunFailed
from ravnest.stage import messages as m
from ravnest.stage.executor import InlineExecutor
from ravnest.stage.process import assemble, batch_source
from ring_allreduce.rounds import SILENCE_FLOOR_S
from ring_allreduce.transport import InProcessNetwork, Lane, Outbox
from tests.support.local import setups_of, tiny_job

STAGES = ["c0.s0", "c0.s1", "c1.s0"]


class InlineDisk(Executor):
    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class News:
    def __init__(self):
        self.ends = []

    def ended(self, timeout_s=0.0):
        ends, self.ends = self.ends, []
        return ends


class Bench:
    """A loop and what surrounds it. Time moves when `turn` is told to."""

    def __init__(self, path, resumed=None, **changes):
        torch.set_num_threads(1)
        self.now_s = 0.0
        self.job = tiny_job(**changes)
        self.setups, self.plan = setups_of(self.job, parts=(2, 1))
        assert list(self.setups) == STAGES
        network = InProcessNetwork(now=self.now)
        driver = network.endpoint(m.DRIVER, m.codec())
        self.stages = {name: network.endpoint(name, m.codec()) for name in STAGES}
        network.connect_all()
        self.folder = RunFolder(path)
        self.events, self.news, self.wish = [], News(), False
        self.writer = MetricsWriter(self.folder.metrics)
        self.control = run_control(self.plan, self.job, self.setups, 10, self.job.stop.samples, resumed)
        self.record = RunRecord(
            path,
            SimpleNamespace(on=self.events.append),
            self.writer,
            stages=STAGES,
            last_stages={"c0.s1": "c0", "c1.s0": "c1"},
            samples_per_update=12,
            total_samples=self.job.stop.samples,
            metrics=[],
        )
        self.loop = DriverLoop(
            StageLinks(driver, Outbox(driver), self.news),
            self.control,
            FailStop({"c0.s0": "desk", "c0.s1": "laptop", "c1.s0": "tower"}, 0.0),
            CheckpointCollector(self.setups, writer_opener(self.folder, self.plan, self.job, resumed), InlineDisk()),
            self.record,
            stop_wanted=lambda: self.wish,
            now=self.now,
        )

    def now(self):
        return self.now_s

    def say(self, stage, message, *tensors):
        self.stages[stage].send(m.DRIVER, Lane.PIPELINE, message, tensors)

    def turn(self, after_s=0.0):
        self.now_s += after_s
        self.loop.turn()

    def heard(self, stage, but=m.Alive):
        return [each.message for each in self.stages[stage].poll(0.0) if not isinstance(each.message, but)]

    def start(self):
        for stage in STAGES:
            self.say(stage, m.StageStarted(process_bytes=1))
        self.turn()
        for stage in STAGES:
            self.heard(stage)


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path)
    yield made
    made.writer.close()


def test_first_stages_may_inject_once_every_stage_holds_its_state(bench):
    for stage in STAGES[:2]:
        bench.say(stage, m.StageStarted(process_bytes=1))
    bench.turn()
    assert all(bench.heard(stage) == [] for stage in STAGES)
    bench.say(STAGES[2], m.StageStarted(process_bytes=1))
    bench.turn()
    assert [bench.heard(stage) for stage in STAGES] == [[m.Go()], [], [m.Go()]]


def test_it_says_each_second_that_it_lives(bench):
    for _ in range(40):
        bench.turn(after_s=0.1)
    assert len(bench.heard("c0.s0", but=())) in (4, 5)


def test_a_stage_that_dies_is_named_with_its_node(bench):
    bench.start()
    bench.news.ends.append(StageEnded("c0.s1", None, "its process was killed"))
    with pytest.raises(NodeLost, match=r"c0\.s1 on node 'laptop' died: its process was killed"):
        bench.turn(after_s=1.0)


def test_a_stage_that_leaves_early_is_lost(bench):
    bench.start()
    bench.news.ends.append(StageEnded("c0.s1", StageOutcome()))
    with pytest.raises(NodeLost, match=r"c0\.s1.*left before the run was over"):
        bench.turn(after_s=1.0)


def test_a_stage_that_fails_is_told_in_one_line_and_its_log_is_kept(bench):
    bench.start()
    bench.news.ends.append(StageEnded("c1.s0", StageOutcome("the loss is nan", "Traceback: many lines")))
    with pytest.raises(RunFailed, match=r"^c1\.s0: the loss is nan \(details in .*c1\.s0\.log\)$"):
        bench.turn(after_s=1.0)
    assert (bench.folder.path / "logs" / "c1.s0.log").read_text() == "Traceback: many lines"


def test_silence_ends_the_run(bench):
    bench.start()
    for _ in range(int(SILENCE_FLOOR_S)):
        for stage in ("c0.s0", "c1.s0"):
            bench.say(stage, m.Alive())
        bench.turn(after_s=1.0)
    with pytest.raises(NodeLost, match=r"c0\.s1 on node 'laptop' has been silent"):
        bench.turn(after_s=1.0)


def alive_for(bench, seconds, finished):
    for second in range(seconds):
        for stage in STAGES:
            bench.say(stage, m.Alive(finished=finished(second)))
        bench.turn(after_s=1.0)


def test_long_work_without_a_report_is_no_stall_while_computations_finish(bench):
    """A first update on a slow node, or an evaluation of a large held-out set, takes minutes."""
    bench.start()
    alive_for(bench, 300, lambda second: second // 20)
    assert bench.control.phase is c.RunPhase.TRAINING


def test_life_without_work_is_a_stall(bench):
    bench.start()
    with pytest.raises(NodeLost, match="no stage has made progress"):
        alive_for(bench, 300, lambda second: 0)


def test_the_wish_to_stop_drains_once(bench):
    bench.start()
    bench.wish = True
    bench.turn()
    bench.turn()
    assert [bench.heard(stage) for stage in STAGES] == [[m.Drain()], [], [m.Drain()]]


def test_a_wish_before_the_start_waits_for_it(bench):
    bench.wish = True
    bench.turn()
    assert bench.control.phase is c.RunPhase.TRAINING
    for stage in STAGES:
        bench.say(stage, m.StageStarted(process_bytes=1))
    bench.turn()
    assert bench.heard("c0.s0") == [m.Go(), m.Drain()]


def test_a_run_that_stops_by_time_counts_from_the_start_of_training(tmp_path):
    bench = Bench(tmp_path, stop={"minutes": 1})
    bench.now_s = 15.0
    bench.start()
    alive_for(bench, 59, lambda second: second)
    assert bench.control.phase is c.RunPhase.TRAINING
    alive_for(bench, 1, lambda second: 99)
    assert bench.control.phase is c.RunPhase.DRAINING
    bench.writer.close()


def runtimes(bench, states):
    made = {}
    for name, setup in bench.setups.items():
        state = states[name]
        weights = {tensor: state.weights[tensor] for tensor in needed(setup)}
        source, endpoint = batch_source(setup), bench.stages[name]
        made[name] = assemble(
            setup, endpoint, InlineExecutor(), source, weights, state.optimizer, state.version, now=bench.now
        )
        bench.say(name, m.StageStarted(process_bytes=1))
    return made


def train(bench, states):
    """To the end, with real stages, which leave when they are told to."""
    stages = runtimes(bench, states)
    for _ in range(5_000):
        bench.turn(after_s=0.01)
        for stage in stages.values():
            if not stage.stopped:
                stage.turn(0.0)
        if bench.control.phase is c.RunPhase.DONE:
            break
    bench.news.ends += [
        StageEnded("c0.s0", None, "died while leaving"),
        *(StageEnded(name, StageOutcome()) for name in STAGES),
    ]
    bench.turn(after_s=1.0)
    bench.loop.run()
    bench.writer.close()
    return stages


def test_a_whole_run_is_recorded_saved_and_can_be_resumed(tmp_path):
    bench = Bench(tmp_path, evaluate_every=60, stop={"samples": 120})
    stages = train(bench, states_for(bench.setups, bench.plan, bench.job, None))
    assert bench.control.phase is c.RunPhase.DONE
    records = read_metrics(bench.folder.metrics)
    assert json.dumps(records, allow_nan=False)
    evaluated = [record for record in records if record["kind"] == "evaluated"]
    assert [record["final"] for record in evaluated][-1] is True
    assert {record["kind"] for record in records} >= {"update", "round", "checkpoint", "evaluated", "phase"}

    resumed = ResumedRun.load(bench.folder, bench.plan, bench.job)
    assert resumed.samples == bench.control.samples
    assert resumed.rounds == bench.control.rounds_committed
    assert resumed.updates == bench.control.updates
    states = states_for(bench.setups, bench.plan, bench.job, resumed)
    for name, stage in stages.items():
        for segment in stage.setup.segments:
            saved = torch.cat([states[name].weights[one].flatten() for one in segment.parameters])
            assert torch.equal(saved, stage.rounds.anchor(segment.ring))
        held = stage.rounds.optimizer_state()
        assert held.keys() == states[name].optimizer.keys()
        assert all(torch.equal(held[key], states[name].optimizer[key]) for key in held)
        assert states[name].version == bench.control.updates[stage.setup.cluster]

    again = Bench(tmp_path, resumed, evaluate_every=60, stop={"samples": 240})
    train(again, states)
    later = ResumedRun.load(again.folder, again.plan, again.job)
    assert later.samples >= 240
    assert later.rounds == resumed.rounds + again.control.rounds_committed
