import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import save_file

from cluster_planner import save_plan
from ravnest.checkpoints.checkpoint import CheckpointWriter
from ravnest.checkpoints.run_folder import RunFolder
from ravnest.checkpoints.weight_files import WeightFiles, open_weights
from ravnest.errors import InvalidInput
from ravnest.results import trained_run
from ravnest.results.trained_run import open_run, open_weights_of_run, weights_of_run
from tests.support.local import JOB_FILE, setups_of, tiny_job


def a_run(folder: Path) -> RunFolder:
    folder.mkdir(exist_ok=True)
    _, plan = setups_of(tiny_job(), parts=(2,))
    save_plan(plan, folder / "plan.yaml")
    return RunFolder(folder)


def checkpoint(folder: RunFolder, rings: int = 2) -> Path:
    writer = CheckpointWriter(folder.checkpoints, round=1, samples=48, versions={"c0": 4}, made_with={})
    writer.add_segment(0, {"x": torch.ones(2)})
    for ring in range(1, rings):
        writer.add_segment(ring, {})
    for stage in range(2):
        writer.add_optimizer("c0", stage, {})
    return writer.commit(())


def finish(folder: RunFolder, made: Path) -> None:
    save_file({"x": torch.ones(2)}, folder.weights)
    folder.summary.write_text(json.dumps({"checkpoint_path": str(made)}))


def test_a_run_is_its_plan_and_the_job_in_it(tmp_path: Path) -> None:
    run = open_run(a_run(tmp_path).path)
    assert run.job == tiny_job()
    assert run.job_file == str(JOB_FILE)


def test_a_run_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs/first").mkdir(parents=True)
    a_run(tmp_path / "runs/first").metrics.touch()
    monkeypatch.chdir(tmp_path)
    assert open_run(Path("first")).folder.path == Path("runs/first")


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="nowhere: no run is here: there is no such folder"):
        open_run(tmp_path / "nowhere")
    (tmp_path / "plan.yaml").write_text("version: 1\n")
    with pytest.raises(InvalidInput, match=r"plan\.yaml"):
        open_run(tmp_path)


def test_a_job_that_has_moved_is_named(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "r")
    moved = tmp_path / "moved"
    shutil.copytree(JOB_FILE.parent, moved, ignore=shutil.ignore_patterns("__pycache__"))
    plan = yaml.safe_load(folder.plan.read_text())
    folder.plan.write_text(yaml.safe_dump({**plan, "job_file": str(tmp_path / "gone/job.yaml")}))
    with pytest.raises(InvalidInput, match=r"job_file: the job's folder .*gone is gone: .* with --job"):
        open_run(folder.path)
    run = open_run(folder.path, moved / "job.yaml")
    assert run.job_file == str(moved / "job.yaml")
    assert run.job.metrics == ("accuracy",)  # the file's, not the plan's


def test_the_weights_are_the_last_that_were_made(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    with pytest.raises(InvalidInput, match="has not come to its first checkpoint: there are no weights"):
        weights_of_run(open_run(folder.path))
    first = checkpoint(folder)
    assert weights_of_run(open_run(folder.path)) == first  # it goes on, or died
    finish(folder, first)
    assert weights_of_run(open_run(folder.path)) == folder.weights
    second = checkpoint(folder)
    assert weights_of_run(open_run(folder.path)) == second  # resumed, and not finished
    finish(folder, second)
    shutil.rmtree(folder.checkpoints)
    assert weights_of_run(open_run(folder.path)) == folder.weights


def test_weights_are_read_to_the_end_though_the_run_removes_their_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_run(a_run(tmp_path).path)
    first = checkpoint(run.folder)
    opened = open_weights_of_run(run)
    assert opened.path == first
    shutil.rmtree(first)
    name = min(opened.stored)
    assert opened.read(name).shape == torch.Size(opened.stored[name].shape)

    def removed(path: Path) -> WeightFiles:
        """The first time the checkpoint is gone, since there is a newer one."""
        monkeypatch.undo()
        checkpoint(run.folder)
        shutil.rmtree(path)
        return open_weights(path)

    second = checkpoint(run.folder)
    monkeypatch.setattr(trained_run, "open_weights", removed)
    assert open_weights_of_run(run).path > second


def test_weights_in_parts_are_found_by_their_index(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    made = checkpoint(folder)
    finish(folder, made)
    folder.weights.unlink()
    folder.weights_index.parent.mkdir()
    assert weights_of_run(open_run(folder.path)) == made  # parts without an index are not whole
    folder.weights_index.write_text("{}")
    assert weights_of_run(open_run(folder.path)) == folder.weights_index


def test_a_summary_that_was_cut_off_leaves_the_checkpoint(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    made = checkpoint(folder)
    finish(folder, made)
    folder.summary.write_text("{")
    assert weights_of_run(open_run(folder.path)) == made


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    (checkpoint(folder) / "segment-000.safetensors").write_bytes(b"x")
    with pytest.raises(InvalidInput, match="damaged"):
        weights_of_run(open_run(folder.path))


def test_a_checkpoint_without_a_segment_of_the_plan_is_refused(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    checkpoint(folder, rings=1)
    with pytest.raises(InvalidInput, match=r"it lacks segment-001\.safetensors; no other"):
        weights_of_run(open_run(folder.path))


def test_a_run_that_has_been_is_opened_whatever_memory_its_nodes_have(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    made = yaml.safe_load(folder.plan.read_text())
    for node in made["nodes"]:
        node["memory_gb"] = 1e-6
    folder.plan.write_text(yaml.safe_dump(made))
    assert {node.memory_bytes for node in open_run(folder.path).plan.fleet.nodes} == {1000}
