import errno
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cluster_planner import Plan
from ravnest.checkpoints.durable_files import DurableFiles
from ravnest.checkpoints.run_folder import RunFolder
from ravnest.checkpoints.sharded_weights import index_name, shard_names
from ravnest.checkpoints.weight_files import open_weights
from ravnest.driver import instructions as ins
from ravnest.driver.observe import report
from ravnest.driver.observe.metrics_file import MetricsWriter
from ravnest.driver.observe.stage_times import StageTimes
from ravnest.driver.outcome import finish, stage_figures, trained_model
from ravnest.driver.preparation import writer_opener
from ravnest.errors import NotWritten
from ravnest.job.materials import make_model
from tests.support.local import JOB_FILE, parts_of_plan, tiny_job
from tests.unit.ravnest.simulator.test_fleet import home_plan


@pytest.mark.parametrize("more", [0, 3])
def test_tensors_are_compared_with_what_the_plan_counts_for_the_window_that_was_used(more: int) -> None:
    plan = home_plan()
    tuned = {cluster.name: cluster.window + more for cluster in plan.clusters}
    predicted = {
        f"{cluster.name}.s{at}": costs.memory_bytes - plan.workload.process_bytes
        for cluster, prediction in zip(plan.clusters, plan.predicted.clusters, strict=True)
        for at, costs in enumerate(prediction.stages)
    }
    record: Any = SimpleNamespace(
        times=StageTimes(),
        staleness={},
        imitated={},
        largest_windows=tuned if more else {},
        tensor_bytes={stage: {"weights": 7} for stage in predicted},
    )
    found = stage_figures(plan, record)
    assert [each.stage for each in found] == list(predicted)
    for figures in found:
        memory = figures.memory
        assert memory is not None
        assert (memory.window, memory.tensor_bytes) == (tuned[figures.stage.partition(".")[0]], 7)
        if more:
            assert memory.planned_bytes > predicted[figures.stage]
        else:
            assert memory.planned_bytes == predicted[figures.stage]


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def finished(
    request: pytest.FixtureRequest, plan: Plan, tmp_path: Path, told: list[str]
) -> Callable[[], report.RunResult]:
    """A function that writes what a run of `plan` leaves; `told` gets what it tells the user. A parameter is the job's
    section `checkpoints`."""
    job, folder = tiny_job(checkpoints=getattr(request, "param", {})), RunFolder(tmp_path / "run")
    writer = writer_opener(folder, lambda: plan, job, None)(ins.BeginCheckpoint(1, 48, {"c0": 1, "c1": 1}))
    for ring in range(len(plan.rings)):
        writer.add_segment(ring, {f"w{ring}": torch.ones(2)})
    for cluster in plan.clusters:
        for stage in range(len(cluster.stages)):
            writer.add_optimizer(cluster.name, stage, {})
    checkpoint = writer.commit(parts_of_plan(plan))
    with MetricsWriter(folder.metrics) as metrics:
        metrics.write("evaluated", 1.0, loss=2.5, samples=12, metrics={})
    data = SimpleNamespace(given=SimpleNamespace(baselines={}))
    record: Any = SimpleNamespace(
        checkpoint_path=checkpoint,
        plan=None,
        evaluations=[],
        training_s=2.0,
        staleness_max=0,
        staleness_sum=0,
        staleness_count=0,
        staleness={},
        rounds_s=[],
        windows={},
        times=StageTimes(),
        tensor_bytes={},
        imitated={},
        drawn=False,
        tell=told.append,
    )
    captured = SimpleNamespace(aliases={})
    prepared: Any = SimpleNamespace(
        folder=folder, plan=plan, job=job, data=data, captured=captured, resumed=None, start=None, rounds_before=0
    )
    control: Any = SimpleNamespace(
        stopped_early=False,
        samples=48,
        accounts=SimpleNamespace(session_samples=48),
        updates={"c0": 1, "c1": 1},
        rounds_committed=1,
    )
    return lambda: finish(prepared, record, control)


def test_a_run_leaves_weights_a_picture_and_a_summary(
    finished: Callable[[], report.RunResult], told: list[str]
) -> None:
    result = finished()
    assert result.loss_curve_path is not None
    assert all(path.is_file() for path in (result.weights_path, result.loss_curve_path))
    assert json.loads((result.out_dir / "summary.json").read_text())["samples"] == 48
    assert told == []


@pytest.mark.parametrize("finished", [{"part_gb": 10e-9}], indirect=True)
def test_weights_that_one_file_may_not_hold_are_in_parts_as_hugging_face_has_them(
    finished: Callable[[], report.RunResult], plan: Plan, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    (folder / "weights.safetensors").write_bytes(b"those of an earlier session")
    result = finished()
    assert result.weights_path == folder / "weights"
    assert not (folder / "weights.safetensors").exists()
    files = open_weights(folder)
    count = len(plan.rings)
    assert sorted(path.name for path in (folder / "weights").iterdir()) == [
        *shard_names("model", count),
        index_name("model"),
    ]
    assert {name: files.read(name).tolist() for name in files.stored} == {f"w{n}": [1.0, 1.0] for n in range(count)}


def test_weights_that_cannot_be_written_are_an_error_that_says_where_they_are(
    finished: Callable[[], report.RunResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(DurableFiles, "write_bytes", full)
    with pytest.raises(NotWritten, match=r"weights\.safetensors: cannot be written: No space left") as caught:
        finished()
    folder = tmp_path / "run"
    assert caught.value.hint == (
        f"the trained weights are safe in {folder / 'checkpoints' / 'checkpoint-000001'}: make room, then write them"
        f" with `ravnest export {folder} --weights FILE`"
    )


@pytest.mark.parametrize("name", ["loss.png", "summary.json", "metrics.jsonl"])
def test_whatever_else_cannot_be_written_or_read_is_told_and_costs_nothing(
    finished: Callable[[], report.RunResult], told: list[str], tmp_path: Path, name: str
) -> None:
    (tmp_path / "run" / name).unlink(missing_ok=True)
    (tmp_path / "run" / name).mkdir()
    result = finished()
    assert result.weights_path.is_file()
    assert len(told) == 1
    assert str(tmp_path / "run" / name) in told[0]
    assert (result.loss_curve_path is None) == (name != "summary.json")


@pytest.mark.parametrize("mapped_bytes", [0, 10**9])
def test_a_trained_model_has_the_trained_weights_wherever_they_lie(mapped_bytes: int) -> None:
    job = tiny_job(model={"factory": "tiny:cnn"}, data={"factory": "tiny:images"})
    plan: Any = SimpleNamespace(job_file=str(JOB_FILE))
    model = make_model(job, JOB_FILE)
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data.add_(1)
    trained = model.state_dict()
    found, sparing = trained_model(plan, job, trained.keys(), trained, mapped_bytes)
    with sparing:
        assert found.state_dict().keys() == trained.keys()
        assert all(torch.equal(found.state_dict()[name], tensor) for name, tensor in trained.items())
