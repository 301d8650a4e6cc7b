import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cluster_planner import Fleet, Plan, load_plan
from ravnest.checkpoints.run_folder import RunFolder
from ravnest.driver import beginning_again
from ravnest.driver import instructions as ins
from ravnest.driver import training_run as driver
from ravnest.driver.imitation import Imitation
from ravnest.driver.node_requests import NodeRequest, RunRequest, put_request
from ravnest.driver.observe import report
from ravnest.driver.observe.metrics_file import read_metrics
from ravnest.driver.planning_anew import PlanningProcess, PlansAnew
from ravnest.driver.preparation import writer_opener
from ravnest.driver.run_store import TakenOver
from ravnest.errors import Interrupted, InvalidInput, NodeLost, NodeNotThere, RunFailed, WrongMessage
from ravnest.job.config import Job
from ravnest.recovery import NodesLeft, plan_for
from ravnest.recovery.restarting import MOST_IN_A_ROW
from tests.support.local import parts_of_plan, tiny_job


class Recorded:
    def __init__(self) -> None:
        self.events: list[report.RunEvent] = []

    def on(self, event: report.RunEvent) -> None:
        self.events.append(event)


@pytest.fixture
def job() -> Job:
    return tiny_job()


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "plan.yaml").write_text("")
    return RunFolder(tmp_path)


def checkpoint(folder: RunFolder, plan: Plan, job: Job) -> Path:
    writer = writer_opener(folder, lambda: plan, job, None)(ins.BeginCheckpoint(1, 48, {"c0": 1, "c1": 1}))
    for ring in range(len(plan.rings)):
        writer.add_segment(ring, {f"w{ring}": torch.ones(2)})
    for cluster in plan.clusters:
        for stage in range(len(cluster.stages)):
            writer.add_optimizer(cluster.name, stage, {})
    return writer.commit(parts_of_plan(plan))


def failed(
    monkeypatch: pytest.MonkeyPatch,
    plan: Plan,
    job: Job,
    folder: RunFolder,
    error: Exception,
    phases: Sequence[str],
) -> RunFailed:
    """What a run raises whose session comes through these phases to this error."""
    prepared = SimpleNamespace(folder=folder, plan=plan, job=job, plan_path=Path("plan.yaml"))

    def train(*_: object, observer: report.Observer, **__: object) -> Any:
        for phase in phases:
            observer.on(report.PhaseEvent(phase))
        raise error

    monkeypatch.setattr(driver, "prepare", lambda *_, **__: prepared)
    monkeypatch.setattr(driver, "train", train)
    monkeypatch.setattr(driver, "begun_again", lambda *_, **__: None)
    observer = Recorded()
    with pytest.raises(RunFailed) as caught:
        driver.run(plan, folder.plan, observer=observer)
    assert observer.events == [report.PhaseEvent(phase) for phase in phases]
    return caught.value


def test_a_device_that_this_machine_lacks_is_told_at_once_with_its_node(plan: Plan, tmp_path: Path) -> None:
    nodes = tuple(replace(node, device="cuda:99") if node.name == "tower" else node for node in plan.fleet.nodes)
    lacking = replace(plan, fleet=replace(plan.fleet, nodes=nodes))
    with pytest.raises(InvalidInput, match="the node's device is cuda:99, but") as caught:
        driver.run(lacking, tmp_path / "plan.yaml", out_dir=tmp_path / "out", observer=Recorded())
    assert (caught.value.path, caught.value.key) == (str(tmp_path / "plan.yaml"), "nodes.tower.device")
    assert "`ravnest rehearse`" in (caught.value.hint or "")
    assert "device: cpu" in (caught.value.hint or "")
    assert not (tmp_path / "out").exists()
    driver.require_devices(lacking, Imitation())  # a rehearsal computes on the processor


def test_what_ray_said_is_named_where_it_said_something(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, job: Job, folder: RunFolder
) -> None:
    folder.ray_log.parent.mkdir()
    monkeypatch.setattr(RunFolder, "begin", lambda *_, **__: folder.ray_log.write_text("words of Ray"))
    error = failed(monkeypatch, plan, job, folder, RunFailed("Ray did not start"), ["starting Ray"])
    assert str(error) == f"Ray did not start; what Ray said is in {folder.ray_log}"


def test_before_training_nobody_misses_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, job: Job, folder: RunFolder
) -> None:
    error = failed(monkeypatch, plan, job, folder, RunFailed("Ray did not start"), ["starting Ray"])
    assert str(error) == "Ray did not start"


def test_once_it_trains_it_is_told_what_there_is_to_go_on_from(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, job: Job, folder: RunFolder
) -> None:
    phases = ["starting Ray", "training", "draining"]
    lost = failed(monkeypatch, plan, job, folder, NodeLost("desk is silent"), phases)
    assert isinstance(lost, NodeLost)
    assert str(lost) == "desk is silent; there was no checkpoint yet"
    checkpoint(folder, plan, job)
    checkpoint(folder, plan, job)
    resumed = failed(monkeypatch, plan, job, folder, RunFailed("no room."), ["starting Ray"])
    command = f"ravnest run plan.yaml --resume --out {folder.path}"
    assert str(resumed) == f"no room; go on from checkpoint-000002 with: {command}"


WORD = '{"kind":"notice","at_s":30.5,"text":"a word"}\n'


@pytest.mark.parametrize(
    ("error", "reason", "at_once"),
    [
        (NodeLost("desk is silent"), "desk is silent; there was no checkpoint yet", False),
        (KeyboardInterrupt(), "stopped at once, by Ctrl-C", True),
        (Interrupted("stopped at once, as it was asked to"), "stopped at once, as it was asked to", True),
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero (", False),
    ],
)
def test_why_a_run_has_ended_is_the_last_line_of_its_metrics(
    monkeypatch: pytest.MonkeyPatch,
    plan: Plan,
    job: Job,
    folder: RunFolder,
    error: Exception,
    reason: str,
    at_once: bool,
) -> None:
    sessions = Sessions(monkeypatch, plan, job, folder, [30.0])
    sessions.error, sessions.saves = error, False
    monkeypatch.setattr(driver, "begun_again", lambda *_, **__: None)

    def train(*args: object, **how: Any) -> Any:
        folder.metrics.write_text(WORD)
        return sessions.train(*args, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(driver, "train", train)
    with pytest.raises(type(error)):
        driver.run(plan, folder.plan, out_dir=folder.path, observer=Recorded())
    (_, written) = read_metrics(folder.metrics)
    assert (written["kind"], written["at_s"]) == ("failed", 30.5)
    assert written["at_once"] is at_once
    assert reason in str(written["reason"])


def test_a_run_that_is_another_drivers_now_or_never_began_gets_no_such_line(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, job: Job, folder: RunFolder
) -> None:
    for error in (TakenOver(), InvalidInput("no such data")):
        sessions = Sessions(monkeypatch, plan, job, folder, [30.0])
        sessions.error, sessions.saves = error, False
        with pytest.raises(type(error)):
            driver.run(plan, folder.plan, out_dir=folder.path, observer=Recorded())
    assert not folder.metrics.exists()


def test_a_checkpoint_that_no_resume_would_take_is_not_offered(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, job: Job, folder: RunFolder
) -> None:
    checkpoint(folder, plan, job)
    damaged = checkpoint(folder, plan, job)
    (damaged / "optimizer-c1-000.safetensors").unlink()
    error = failed(monkeypatch, plan, job, folder, RunFailed("no room."), ["training"])
    assert str(error) == (
        f"no room; it cannot be resumed as it is: {damaged}: the latest checkpoint is damaged:"
        " optimizer-c1-000.safetensors is missing; to resume from checkpoint-000001, write that name into"
        f" {folder.checkpoints / 'latest'}"
    )
    assert type(error) is RunFailed


class Sessions:
    """Sessions of one run, of which each but the last loses all clusters after so many seconds of training."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, plan: Plan, job: Job, folder: RunFolder, lost_after_s: Sequence[float]
    ) -> None:
        self.left = list(lost_after_s)
        self.limits: list[report.RunLimit] = []
        self.plans: list[Plan] = []
        self.resumed: list[bool] = []
        self.waits: list[float] = []
        self.alive = {node.name for node in plan.fleet.nodes}
        self.saves = True
        self.shut_out: dict[str, str] = {}
        """What the last session knew of it when it began."""
        self.leave: Sequence[str] = ()
        """The nodes that leave with notice in the session that comes next."""
        self.job, self.folder = job, folder
        monkeypatch.setattr(driver, "prepare", self.prepare)
        monkeypatch.setattr(driver, "train", self.train)
        monkeypatch.setattr(driver, "finish", lambda *_, **__: "finished")
        self.error: Exception = NodeLost("the last one is gone")
        self.trains = True
        monkeypatch.setattr(beginning_again, "nodes_alive", lambda *_: self.alive)
        monkeypatch.setattr(beginning_again.time, "sleep", self.waited)

    def waited(self, seconds: float) -> None:
        self.waits.append(seconds)

    def prepare(self, plan: Plan, plan_path: Path, *_: object, resume: bool, **__: object) -> Any:
        self.plans.append(plan)
        self.resumed.append(resume)
        return SimpleNamespace(folder=self.folder, plan=plan, job=self.job, plan_path=plan_path)

    def train(
        self,
        prepared: Any,
        *_: object,
        observer: report.Observer,
        limit: report.RunLimit,
        left: NodesLeft,
        **__: object,
    ) -> Any:
        self.limits.append(limit)
        self.shut_out = dict(left.liars)
        for node in self.leave:
            left.leave(node)
        self.leave = ()
        if self.trains or not self.left:
            observer.on(report.PhaseEvent("training"))
        if not self.left:
            return None, None
        observer.on(report.ProgressEvent(self.left.pop(0), 60, None, ()))
        if self.saves:
            checkpoint(self.folder, prepared.plan, self.job)
        raise self.error


def restarted(observer: Recorded) -> list[report.RestartedEvent]:
    return [event for event in observer.events if isinstance(event, report.RestartedEvent)]


def test_a_run_without_clusters_begins_again_from_its_last_checkpoint_for_the_rest_of_its_time(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, job: Job, folder: RunFolder
) -> None:
    sessions, observer = Sessions(monkeypatch, plan, job, folder, [30.0, 40.0]), Recorded()
    done = driver.run(plan, folder.plan, observer=observer, limit=report.RunLimit(seconds=100.0))
    assert str(done) == "finished"
    assert sessions.resumed == [False, True, True]
    assert sessions.plans == [plan] * 3
    assert [limit.seconds for limit in sessions.limits] == [100.0, 70.0, 30.0]
    assert [(event.reason, event.checkpoint, event.planned_anew, event.samples) for event in restarted(observer)] == [
        ("the last one is gone", "checkpoint-000001", False, 12),
        ("the last one is gone", "checkpoint-000002", False, 12),
    ]
    assert sum(sessions.waits) == pytest.approx(sum(event.wait_s for event in restarted(observer)))
    written = [each for each in read_metrics(folder.metrics) if each["kind"] == "restarted"]
    assert [(each["at_s"], each["checkpoint"]) for each in written] == [
        (30.0, "checkpoint-000001"),
        (40.0, "checkpoint-000002"),
    ]


def test_a_session_that_has_ended_for_a_better_plan_is_followed_by_one_by_that_plan(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, job: Job, folder: RunFolder
) -> None:
    sessions, observer = Sessions(monkeypatch, plan, job, folder, [30.0]), Recorded()
    better = plan_for(plan, sessions.alive - {plan.clusters[0].stages[0].node})

    def train(*args: object, anew: PlansAnew, **how: Any) -> Any:
        anew.next_plan = better if not sessions.limits else None
        return sessions.train(*args, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(driver, "train", train)
    assert str(driver.run(plan, folder.plan, observer=observer)) == "finished"
    assert sessions.plans == [plan, better]
    assert sessions.resumed == [False, True]
    assert [event.planned_anew for event in restarted(observer)] == [True]
    assert load_plan(folder.plan).clusters == better.clusters


def test_the_plan_of_a_user_is_not_questioned_because_its_run_has_begun_again(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, job: Job, folder: RunFolder
) -> None:
    """Also where it was made in Python, and was read from no file."""
    sessions, asked = Sessions(monkeypatch, plan, job, folder, [30.0, 40.0]), list[bool]()
    better = plan_for(plan, sessions.alive - {plan.clusters[0].stages[0].node})

    def plans_anew(process: PlanningProcess, *, questioned: bool) -> PlansAnew:
        asked.append(questioned)
        return PlansAnew(process, questioned=questioned)

    def train(*args: object, anew: PlansAnew, **how: Any) -> Any:
        anew.next_plan = better if len(asked) == 2 else None
        return sessions.train(*args, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(driver, "PlansAnew", plans_anew)
    monkeypatch.setattr(driver, "train", train)
    checkpoint(folder, plan, job)
    driver.run(plan, out_dir=folder.path, resume=True, observer=Recorded())
    assert sessions.plans == [plan, plan, better]
    assert asked == [False, False, True]


def test_a_run_whose_nodes_are_gone_goes_on_by_a_plan_for_the_others(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, job: Job, folder: RunFolder
) -> None:
    sessions, observer = Sessions(monkeypatch, plan, job, folder, [30.0]), Recorded()
    gone = plan.clusters[0].stages[0].node
    sessions.alive.discard(gone)
    driver.run(plan, folder.plan, observer=observer)
    nodes = {stage.node for cluster in sessions.plans[1].clusters for stage in cluster.stages}
    assert gone not in nodes
    assert [event.planned_anew for event in restarted(observer)] == [True]
    assert gone in folder.plan.read_text(), "the new plan is in the folder, and the node a spare of it"


def test_a_node_that_has_left_is_left_out_when_the_run_begins_again(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, job: Job, folder: RunFolder
) -> None:
    sessions = Sessions(monkeypatch, plan, job, folder, [30.0, 30.0])
    gone = plan.clusters[0].stages[0].node
    sessions.leave = (gone,)
    driver.run(plan, folder.plan, out_dir=folder.path, observer=Recorded())
    for again in sessions.plans[1:]:
        assert gone not in {stage.node for cluster in again.clusters for stage in cluster.stages}


def test_where_all_nodes_have_left_the_run_waits_until_a_user_lets_them_in_again(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, job: Job, folder: RunFolder
) -> None:
    sessions, observer = Sessions(monkeypatch, plan, job, folder, [30.0]), Recorded()
    sessions.leave = tuple(sessions.alive)
    waited = sessions.waited

    def waits(seconds: float) -> None:
        waited(seconds)
        if len(sessions.waits) == 1:
            put_request(folder.path, NodeRequest("join", "nobody"))
            for node in sessions.alive:
                put_request(folder.path, NodeRequest("join", node))

    monkeypatch.setattr(beginning_again.time, "sleep", waits)
    assert str(driver.run(plan, folder.plan, out_dir=folder.path, observer=observer)) == "finished"
    (event,) = [event for event in observer.events if isinstance(event, report.WaitsForNodesEvent)]
    assert "`ravnest join` lets a node in again" in event.reason
    assert sessions.plans == [plan, plan]
    assert report.NoticeEvent("no node of the plan is named 'nobody': it cannot join") in observer.events
    assert list(folder.path.glob(".request-*")) == []


def test_a_run_that_comes_to_no_other_checkpoint_ends_after_some_tries(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, job: Job, folder: RunFolder
) -> None:
    sessions, observer = Sessions(monkeypatch, plan, job, folder, [1.0] * 20), Recorded()
    checkpoint(folder, plan, job)
    sessions.saves = False
    with pytest.raises(NodeLost, match="the last one is gone; go on from checkpoint-000001 with: ravnest run"):
        driver.run(plan, folder.plan, observer=observer)
    assert len(restarted(observer)) == len(sessions.plans) - 1 == MOST_IN_A_ROW


def test_a_run_without_a_checkpoint_begins_again_from_the_start(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, job: Job, folder: RunFolder
) -> None:
    sessions, observer = Sessions(monkeypatch, plan, job, folder, [1.0, 1.0]), Recorded()
    sessions.saves = sessions.trains = False
    assert str(driver.run(plan, folder.plan, observer=observer)) == "finished"
    assert sessions.resumed == [False] * 3
    assert [event.checkpoint for event in restarted(observer)] == ["", ""]
    assert [one["kind"] for one in read_metrics(folder.metrics)] == ["restarted"] * 2, "what was written stays"


def test_a_node_that_goes_while_a_run_begins_again_is_left_out(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, job: Job, folder: RunFolder
) -> None:
    sessions, observer = Sessions(monkeypatch, plan, job, folder, [1.0, 1.0]), Recorded()
    gone, train = plan.clusters[0].stages[0].node, sessions.train

    def lost_then_not_there(*arguments: object, **named: Any) -> Any:
        if len(sessions.limits) == 1:
            sessions.error = NodeNotThere(f"no live Ray node is {gone!r}")
            sessions.alive.discard(gone)
        return train(*arguments, **named)

    monkeypatch.setattr(driver, "train", lost_then_not_there)
    assert str(driver.run(plan, folder.plan, observer=observer)) == "finished"
    assert [event.planned_anew for event in restarted(observer)] == [False, True]
    nodes = {stage.node for cluster in sessions.plans[2].clusters for stage in cluster.stages}
    assert gone not in nodes


def test_a_node_that_is_not_there_at_the_first_start_is_the_users_to_mend(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, job: Job, folder: RunFolder
) -> None:
    sessions = Sessions(monkeypatch, plan, job, folder, [1.0])
    sessions.error = NodeNotThere("no live Ray node is 'desk'")
    with pytest.raises(NodeNotThere):
        driver.run(plan, folder.plan, observer=Recorded())
    assert len(sessions.plans) == 1


def test_a_run_that_nothing_can_be_planned_for_waits_for_nodes(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, job: Job, folder: RunFolder
) -> None:
    sessions, observer = Sessions(monkeypatch, plan, job, folder, [1.0]), Recorded()
    everybody, waited = set(sessions.alive), sessions.waited
    sessions.alive.clear()

    def waits(seconds: float) -> None:
        waited(seconds)
        if sum(sessions.waits) > 1000.0:
            sessions.alive |= everybody

    monkeypatch.setattr(beginning_again.time, "sleep", waits)
    assert str(driver.run(plan, folder.plan, observer=observer)) == "finished"
    (event,) = [event for event in observer.events if isinstance(event, report.WaitsForNodesEvent)]
    assert "no node of the plan is there" in event.reason
    assert sessions.plans == [plan, plan]
    assert [one["kind"] for one in read_metrics(folder.metrics)] == ["waits", "restarted"]


def test_a_run_that_waits_for_nodes_goes_on_with_a_machine_that_joins_it_meanwhile(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, job: Job, folder: RunFolder
) -> None:
    """Nobody took its request before the run trained again, which it could not."""
    sessions, observer = Sessions(monkeypatch, plan, job, folder, [1.0]), Recorded()
    sessions.alive.clear()
    (new,) = (replace(each, name="new") for each in plan.fleet.nodes[:1])

    def waits(_: float) -> None:
        if not sessions.alive:
            put_request(folder.path, NodeRequest("join", "new", fleet=Fleet((replace(new, memory_bytes=10**12),))))
            sessions.alive.add("new")

    monkeypatch.setattr(beginning_again.time, "sleep", waits)
    assert str(driver.run(plan, folder.plan, out_dir=folder.path, observer=observer)) == "finished"
    assert {stage.node for cluster in sessions.plans[-1].clusters for stage in cluster.stages} == {"new"}
    assert [one["kind"] for one in read_metrics(folder.metrics)] == ["waits", "joined", "restarted"]


def test_a_run_that_waits_for_nodes_ends_when_it_is_asked_to(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, job: Job, folder: RunFolder
) -> None:
    sessions = Sessions(monkeypatch, plan, job, folder, [1.0])
    sessions.alive.clear()
    sleep = lambda _: put_request(folder.path, RunRequest("stop"))  # noqa: E731
    monkeypatch.setattr(beginning_again.time, "sleep", sleep)
    with pytest.raises(Interrupted, match="as it was asked to"):
        driver.run(plan, folder.plan, out_dir=folder.path, observer=Recorded())


def test_a_run_that_is_asked_to_stop_before_it_trains_ends_at_its_next_step(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, folder: RunFolder
) -> None:
    put_request(folder.path, RunRequest("stop"))  # of a session before: it stops nothing
    began = []

    def prepare(*_: object, observer: report.Observer, **__: object) -> Any:
        began.append(list(folder.path.glob(".request-*")))
        put_request(folder.path, NodeRequest("leave", "desk"))
        put_request(folder.path, RunRequest("stop"))
        observer.on(report.PhaseEvent("preparing"))
        pytest.fail("it went on")

    monkeypatch.setattr(driver, "prepare", prepare)
    with pytest.raises(Interrupted, match="as it was asked to"):
        driver.run(plan, out_dir=folder.path, observer=Recorded())
    assert began == [[]]
    assert len(list(folder.path.glob(".request-*"))) == 1, "that of a node is for later"


def test_a_driver_whose_run_was_taken_over_says_just_that(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, job: Job, folder: RunFolder
) -> None:
    checkpoint(folder, plan, job)
    error = failed(monkeypatch, plan, job, folder, TakenOver(), ["training"])
    assert str(error) == str(TakenOver())


def test_an_error_of_any_class_is_told_with_what_helps(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, job: Job, folder: RunFolder
) -> None:
    error = failed(monkeypatch, plan, job, folder, WrongMessage("c0.s0", "sent nonsense"), ["training"])
    assert str(error) == "c0.s0 sent nonsense; there was no checkpoint yet"
    assert type(error) is RunFailed


def test_a_node_that_was_shut_out_stays_out_of_a_resumed_run(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, job: Job, folder: RunFolder
) -> None:
    sessions, observer = Sessions(monkeypatch, plan, job, folder, []), Recorded()
    checkpoint(folder, plan, job)
    liar = plan.clusters[0].stages[0].node
    folder.shut_out.write_text(f'{{"{liar}": "c0.s0: it lied", "a node of another plan": "it lied, too"}}')
    driver.run(plan, folder.plan, out_dir=folder.path, resume=True, observer=observer)
    (without,) = sessions.plans
    assert liar not in {stage.node for cluster in without.clusters for stage in cluster.stages}
    assert sessions.resumed == [True]
    assert sessions.shut_out[liar] == "c0.s0: it lied"
    assert any(liar in str(event) and str(folder.shut_out) in str(event) for event in observer.events)


def test_a_resume_that_nobody_is_left_for_says_who_was_shut_out_and_where_that_stands(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, job: Job, folder: RunFolder
) -> None:
    Sessions(monkeypatch, plan, job, folder, [])
    checkpoint(folder, plan, job)
    folder.shut_out.write_text(json.dumps({node.name: "it lied" for node in plan.fleet.nodes}))
    with pytest.raises(InvalidInput, match="were shut out") as caught:
        driver.run(plan, folder.plan, out_dir=folder.path, resume=True, observer=Recorded())
    assert caught.value.path == str(folder.shut_out)
