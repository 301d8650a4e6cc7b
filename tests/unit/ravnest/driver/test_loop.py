"""The driver's loop on a network in memory, with stages that the test plays, and with real ones."""

import json
from concurrent.futures import Executor, Future
from types import SimpleNamespace

import pytest
import torch

from ravnest.checkpoints.checkpoint import CheckpointWriter
from ravnest.checkpoints.durable_files import DurableFiles
from ravnest.checkpoints.run_folder import RunFolder
from ravnest.driver import instructions as ins
from ravnest.driver.checkpoint_collector import CheckpointCollector
from ravnest.driver.loop import DriverLoop
from ravnest.driver.loop_parts import StageLinks
from ravnest.driver.observe.metrics_file import MetricsWriter, read_metrics
from ravnest.driver.observe.record import RunRecord
from ravnest.driver.observe.report import (
    CheckpointRefusedEvent,
    CheckpointWrittenEvent,
    ClusterLostEvent,
    NoticeEvent,
    StageSuspectedEvent,
)
from ravnest.driver.preparation import needed, states_for, writer_opener
from ravnest.driver.ray.stage_actors import StageEnded, StageOutcome
from ravnest.driver.resuming import ResumedRun
from ravnest.driver.run_rings import RunRings
from ravnest.driver.session import run_control
from ravnest.driver.stage_watch import NOBODY_HEARD_S, StageWatch
from ravnest.errors import NodeLost, NotWritten, RunFailed
from ravnest.stage import messages as m
from ravnest.stage import state_messages as sm
from ravnest.stage.assembling import assemble, batch_source
from ravnest.stage.executor import InlineExecutor
from ravnest.stage.messages import STALL_FLOOR_S
from ring_allreduce.rounds import SILENCE_FLOOR_S
from ring_allreduce.transport import InProcessNetwork, Lane, Outbox, PeerAddress
from tests.support.local import setups_of, tiny_job
from tests.support.state import saved as saved_state

STAGES = ["c0.s0", "c0.s1", "c1.s0"]


class InlineDisk(Executor):
    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - as an executor does
            future.set_exception(error)
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
        self.driver = driver = network.endpoint(m.DRIVER, m.codec())
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
        self.rings = RunRings(self.plan, self.setups, dict.fromkeys(STAGES, PeerAddress("127.0.0.1", 5000, 5001)))
        outbox = Outbox(driver)
        self.loop = DriverLoop(
            StageLinks(driver, outbox, self.news),
            self.control,
            StageWatch({"c0.s0": "desk", "c0.s1": "laptop", "c1.s0": "tower"}, 0.0),
            self.rings,
            CheckpointCollector(
                self.setups, writer_opener(self.folder, lambda: self.plan, self.job, resumed), InlineDisk()
            ),
            self.record,
            stop_wanted=lambda: self.wish,
            recovery=self.recovery(driver, outbox),
            now=self.now,
        )

    def recovery(self, driver, outbox):
        """What starts lost clusters anew: nothing."""

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


def lost(bench):
    return [event for event in bench.events if isinstance(event, ClusterLostEvent)]


def test_a_stage_that_dies_takes_its_cluster_out_of_the_run(bench):
    bench.start()
    bench.news.ends.append(StageEnded("c0.s1", None, "its process was killed"))
    bench.turn(after_s=1.0)
    (event,) = lost(bench)
    assert (event.cluster, event.stage, event.node, event.left) == ("c0", "c0.s1", "laptop", ("c1",))
    assert event.silent_s == 1.0
    assert event.reason == "stage c0.s1 on node 'laptop' died: its process was killed"
    assert bench.heard("c0.s0") == [m.Stop()]
    (told,) = bench.heard("c1.s0")
    assert (told.epoch, told.lost) == (1, ("c0.s0", "c0.s1"))
    assert {ring.members for ring in told.rings} == {("c1.s0",)}
    bench.news.ends.append(StageEnded("c0.s0", StageOutcome()))
    bench.turn(after_s=1.0)
    assert len(lost(bench)) == 1, "it left because it was told to"


def test_a_stage_that_falls_silent_is_suspected_before_it_is_lost(bench):
    bench.start()
    for second in range(30):
        for stage in STAGES[1:] if second < 25 else STAGES:
            bench.say(stage, m.Alive())
        bench.turn(after_s=0.5)
    suspected = [event for event in bench.events if isinstance(event, StageSuspectedEvent)]
    assert [(each.stage, each.node, each.heard_again) for each in suspected] == [
        ("c0.s0", "desk", False),
        ("c0.s0", "desk", True),
    ]
    assert lost(bench) == []


def test_the_last_cluster_that_loses_a_stage_ends_the_run_and_names_it(bench):
    bench.start()
    bench.news.ends.append(StageEnded("c0.s1", None, "its process was killed"))
    bench.turn(after_s=1.0)
    bench.news.ends.append(StageEnded("c1.s0", None, "the lights went out"))
    with pytest.raises(NodeLost, match=r"c1\.s0 on node 'tower' died: the lights went out"):
        bench.turn(after_s=1.0)


def test_a_stage_that_dies_before_training_ends_the_run(bench):
    bench.news.ends.append(StageEnded("c0.s1", None, "its process was killed"))
    with pytest.raises(NodeLost, match=r"c0\.s1 on node 'laptop' died"):
        bench.turn(after_s=1.0)


def test_a_stage_that_leaves_early_is_lost(bench):
    bench.start()
    bench.news.ends.append(StageEnded("c0.s1", StageOutcome()))
    bench.turn(after_s=1.0)
    assert "c0.s1 on node 'laptop' left before the run was over" in lost(bench)[0].reason


def test_a_stage_that_fails_is_told_in_one_line_and_its_log_is_kept(bench):
    bench.start()
    bench.news.ends.append(StageEnded("c1.s0", StageOutcome("the loss is nan", "Traceback: many lines")))
    with pytest.raises(RunFailed, match=r"^c1\.s0: the loss is nan \(details in .*c1\.s0\.log\)$"):
        bench.turn(after_s=1.0)
    assert (bench.folder.path / "logs" / "c1.s0.log").read_text() == "Traceback: many lines"


def test_a_silent_stage_is_lost(bench):
    bench.start()
    for _ in range(int(SILENCE_FLOOR_S) + 1):
        assert lost(bench) == []
        for stage in ("c0.s0", "c1.s0"):
            bench.say(stage, m.Alive())
        bench.turn(after_s=1.0)
    assert "c0.s1 on node 'laptop' has been silent" in lost(bench)[0].reason


def test_a_pause_of_everything_is_nobody_s_silence(bench):
    """The processes were frozen, or the machine suspended, for longer than any deadline."""
    bench.start()
    bench.turn(after_s=0.1)
    bench.turn(after_s=7200.0)
    for stage in STAGES:
        bench.say(stage, m.Alive())
    bench.turn(after_s=0.1)
    assert bench.control.phase is ins.RunPhase.TRAINING
    notices = [event.text for event in bench.events if isinstance(event, NoticeEvent)]
    assert len(notices) == 1
    assert "stood still for 1 h 59 min" in notices[0]


def test_who_stays_silent_after_a_pause_is_lost_by_its_own_deadline(bench):
    bench.start()
    bench.turn(after_s=7200.0)
    for _ in range(30):
        bench.say("c1.s0", m.Alive())
        bench.turn(after_s=1.0)
    (event,) = lost(bench)
    assert event.reason.startswith("stage c0.s0 on node 'desk' has been silent for 2")


def test_a_run_that_hears_nobody_waits_for_longer_than_any_deadline_and_then_ends(bench):
    bench.start()
    seconds(bench, int(NOBODY_HEARD_S) - 1)
    with pytest.raises(NodeLost, match=r"has been silent for 12\d s"):
        seconds(bench, 10)


def test_a_pause_is_no_minute_of_training(tmp_path):
    bench = Bench(tmp_path, stop={"minutes": 1})
    bench.start()
    bench.turn(after_s=7200.0)
    assert bench.control.phase is ins.RunPhase.TRAINING
    alive_for(bench, 60, lambda second: second)
    assert bench.control.phase is ins.RunPhase.DRAINING
    bench.writer.close()


def seconds(bench, count):
    for _ in range(count):
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
    assert bench.control.phase is ins.RunPhase.TRAINING


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
    assert bench.control.phase is ins.RunPhase.TRAINING
    for stage in STAGES:
        bench.say(stage, m.StageStarted(process_bytes=1))
    bench.turn()
    assert bench.heard("c0.s0") == [m.Go(), m.Drain()]


def test_a_run_that_stops_by_time_counts_from_the_start_of_training(tmp_path):
    bench = Bench(tmp_path, stop={"minutes": 1})
    bench.now_s = 15.0
    bench.start()
    alive_for(bench, 59, lambda second: second)
    assert bench.control.phase is ins.RunPhase.TRAINING
    alive_for(bench, 1, lambda second: 99)
    assert bench.control.phase is ins.RunPhase.DRAINING
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
        if bench.control.phase is ins.RunPhase.DONE:
            break
    bench.news.ends += [
        StageEnded("c0.s0", None, "died while leaving"),
        *(StageEnded(name, StageOutcome()) for name in STAGES),
    ]
    bench.turn(after_s=1.0)
    bench.loop.run()
    bench.writer.close()
    return stages


class FullDisk:
    """The disk refuses the files of these checkpoints, by the order in which they are begun."""

    def __init__(self, monkeypatch, *refused):
        self.begun, write, begin = 0, DurableFiles.write_bytes, CheckpointWriter.__init__

        def counted(writer, *args, **kwargs):
            self.begun += 1
            begin(writer, *args, **kwargs)

        def written(files, path, data):
            if self.begun in refused:
                raise OSError(28, "No space left on device")
            write(files, path, data)

        monkeypatch.setattr(CheckpointWriter, "__init__", counted)
        monkeypatch.setattr(DurableFiles, "write_bytes", written)


def test_a_full_disk_at_a_checkpoint_lets_training_go_on_and_says_so(tmp_path, monkeypatch):
    FullDisk(monkeypatch, 2)
    bench = Bench(tmp_path, evaluate_every=60, stop={"samples": 240})
    train(bench, states_for(bench.setups, bench.plan, bench.job, None))
    assert bench.control.phase is ins.RunPhase.DONE
    (refused,) = (event for event in bench.events if isinstance(event, CheckpointRefusedEvent))
    assert "cannot be written: No space left on device" in refused.reason
    assert any(
        line["kind"] == "not_saved" and line["round"] == refused.round for line in read_metrics(bench.folder.metrics)
    )
    written = [event for event in bench.events if isinstance(event, CheckpointWrittenEvent)]
    assert len(written) >= 2
    assert ResumedRun.load(bench.folder, bench.plan, bench.job).samples == bench.control.samples
    assert list(bench.folder.checkpoints.glob(".unfinished-*")) == []


def test_a_full_disk_at_the_last_checkpoint_ends_the_run_since_its_result_is_in_it(tmp_path, monkeypatch):
    FullDisk(monkeypatch, *range(2, 100))
    bench = Bench(tmp_path, evaluate_every=60, stop={"samples": 240})
    with pytest.raises(NotWritten, match="cannot be written: No space left on device"):
        train(bench, states_for(bench.setups, bench.plan, bench.job, None))
    bench.writer.close()
    assert 0 < ResumedRun.load(bench.folder, bench.plan, bench.job).samples < bench.control.samples


def test_a_full_disk_does_not_end_a_run_that_begins_again(tmp_path, monkeypatch):
    FullDisk(monkeypatch, *range(1, 100))
    bench = Bench(tmp_path, evaluate_every=60, stop={"samples": 10_000})
    stages = runtimes(bench, states_for(bench.setups, bench.plan, bench.job, None))
    for turn in range(5_000):
        bench.turn(after_s=0.01)
        for stage in stages.values():
            if not stage.stopped:
                stage.turn(0.0)
        if turn == 100:
            orders = bench.control.begin_again("another plan makes more")
            for told in (order for order in orders if isinstance(order, ins.SendToStage)):
                bench.driver.send(told.peer, Lane.PIPELINE, told.message)
        if bench.control.phase is ins.RunPhase.DONE:
            break
    bench.news.ends += [StageEnded(name, StageOutcome()) for name in STAGES]
    with pytest.raises(NodeLost, match="another plan makes more"):
        bench.loop.run()
    bench.writer.close()
    assert any(isinstance(event, CheckpointRefusedEvent) for event in bench.events)
    assert not bench.folder.has_checkpoint


def test_a_whole_run_is_recorded_saved_and_can_be_resumed(tmp_path):
    bench = Bench(tmp_path, evaluate_every=60, stop={"samples": 120})
    stages = train(bench, states_for(bench.setups, bench.plan, bench.job, None))
    assert bench.control.phase is ins.RunPhase.DONE
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
        _, held = saved_state(stage.rounds)
        assert held.keys() == states[name].optimizer.keys()
        assert all(torch.equal(held[key], states[name].optimizer[key]) for key in held)
        assert states[name].version == bench.control.updates[stage.setup.cluster]

    again = Bench(tmp_path, resumed, evaluate_every=60, stop={"samples": 240})
    train(again, states)
    later = ResumedRun.load(again.folder, again.plan, again.job)
    assert later.samples >= 240
    assert later.rounds == resumed.rounds + again.control.rounds_committed


def test_a_run_that_is_saved_because_nobody_stays_is_told_to_begin_again(tmp_path):
    bench = Bench(tmp_path, evaluate_every=60, stop={"samples": 10_000})
    stages = runtimes(bench, states_for(bench.setups, bench.plan, bench.job, None))
    for turn in range(5_000):
        bench.turn(after_s=0.01)
        for stage in stages.values():
            if not stage.stopped:
                stage.turn(0.0)
        if turn == 100:
            for told in bench.control.leave("c0", "it was asked to"):
                bench.driver.send(told.peer, Lane.PIPELINE, told.message)
            bench.news.ends.append(StageEnded("c1.s0", None, "its process was killed"))
            bench.now_s += 1.0
        if bench.control.phase is ins.RunPhase.DONE:
            break
    bench.news.ends += [StageEnded(name, StageOutcome()) for name in STAGES]
    with pytest.raises(NodeLost, match=r"c1\.s0 on node 'tower' died"):
        bench.loop.run()
    bench.writer.close()
    assert ResumedRun.load(bench.folder, bench.plan, bench.job).samples == bench.control.samples > 0


def test_a_stage_that_fails_for_want_of_memory_or_disk_costs_its_cluster_alone(bench):
    bench.start()
    bench.news.ends.append(StageEnded("c0.s1", StageOutcome("no memory", "Traceback: many lines", of_machine=True)))
    bench.turn(after_s=1.0)
    (event,) = lost(bench)
    assert event.reason.startswith("c0.s1: no memory (details in ")
    assert bench.control.clusters.training == ["c1"]


def test_a_stage_that_sends_what_none_sends_costs_its_cluster_alone(bench):
    bench.start()
    bench.say("c0.s1", sm.StatePiece(round=1, file="segment-000.safetensors", offset=0, last=False), torch.zeros(1))
    bench.turn()
    (event,) = lost(bench)
    assert "c0.s1 sent segment-000.safetensors for a checkpoint of round 1, which is not open" in event.reason


def test_a_computation_that_hangs_costs_its_cluster_while_the_others_compute(bench):
    bench.start()
    for second in range(int(STALL_FLOOR_S) + 10):
        for stage in STAGES:
            bench.say(stage, m.Alive(finished=second if stage == "c1.s0" else min(second, 5)))
        bench.turn(after_s=1.0)
    (event,) = lost(bench)
    assert (event.cluster, event.left) == ("c0", ("c1",))
    assert "no stage of c0 has computed anything" in event.reason
    assert bench.control.phase is ins.RunPhase.TRAINING
