from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cluster_planner import Plan
from ravnest.checkpoints.run_folder import RunFolder
from ravnest.driver import control as c
from ravnest.driver import training_run as driver
from ravnest.driver.checkpoint_collector import parts_of_plan
from ravnest.driver.observe import report
from ravnest.driver.preparation import writer_opener
from ravnest.errors import NodeLost, RunFailed
from ravnest.job.config import Job
from tests.support.local import tiny_job


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
    writer = writer_opener(folder, plan, job, None)(c.BeginCheckpoint(1, 48, {"c0": 1, "c1": 1}))
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
    observer = Recorded()
    with pytest.raises(RunFailed) as caught:
        driver.run(plan, folder.plan, observer=observer)
    assert observer.events == [report.PhaseEvent(phase) for phase in phases]
    return caught.value


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
    resumed = failed(monkeypatch, plan, job, folder, RunFailed("no room"), ["starting Ray"])
    command = f"ravnest run plan.yaml --resume --out {folder.path}"
    assert str(resumed) == f"no room; go on from checkpoint-000002 with: {command}"


def test_a_checkpoint_that_no_resume_would_take_is_not_offered(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, job: Job, folder: RunFolder
) -> None:
    checkpoint(folder, plan, job)
    damaged = checkpoint(folder, plan, job)
    (damaged / "optimizer-c1-000.safetensors").unlink()
    error = failed(monkeypatch, plan, job, folder, RunFailed("no room"), ["training"])
    assert str(error) == (
        f"no room; it cannot be resumed as it is: {damaged}: the latest checkpoint is damaged:"
        " optimizer-c1-000.safetensors is missing; to resume from checkpoint-000001, write that name into"
        f" {folder.checkpoints / 'latest'}"
    )
    assert type(error) is RunFailed
