"""What a run has left for later use: its plan, its job, and the files that hold its weights.

In: the folder of a run. Out: a `TrainedRun`, and the path of its weights: weights.safetensors, or the index of those in
parts, unless the run has made a checkpoint since. No tensor is read.
"""

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cluster_planner import Plan, load_plan
from ravnest.checkpoints.checkpoint import name_of_latest, open_latest
from ravnest.checkpoints.run_folder import RunFolder
from ravnest.checkpoints.weight_files import WeightFiles, open_weights
from ravnest.driver.checkpoint_collector import parts_of_checkpoint
from ravnest.errors import InvalidInput
from ravnest.job.config import Job, job_from_mapping, load_job
from ravnest.job.job_of_plan import as_planned
from ravnest.results.run_state import find_run


@dataclass(frozen=True)
class TrainedRun:
    """A run that has been started: its folder, its plan and its job, whether it has finished or not."""

    folder: RunFolder
    plan: Plan
    job: Job
    job_file: str
    """The path of the job file. The user's factories are looked for in its folder."""


def open_run(path: Path, job_path: Path | None = None) -> TrainedRun:
    """Open the run in the folder `path`, or the run of that name in runs/.

    `job_path` names a job.yaml that is used instead of the plan's own job, for instance one that has moved. Raises
    InvalidInput where there is no run, or where the job's folder is gone.
    """
    folder = RunFolder(path)
    if not folder.plan.is_file():
        folder = RunFolder(find_run(path))
    plan = load_plan(folder.plan, has_run=True)
    if job_path is not None:
        return TrainedRun(folder, plan, as_planned(load_job(job_path), plan.workload), str(job_path.resolve()))
    job = job_from_mapping(plan.job, path=str(folder.plan), under="job.")
    if not Path(plan.job_file).parent.is_dir():
        message = f"the job's folder {Path(plan.job_file).parent} is gone: name job.yaml where it lies now with --job"
        raise InvalidInput(message, path=str(folder.plan), key="job_file")
    return TrainedRun(folder, plan, job, plan.job_file)


def open_weights_of_run(run: TrainedRun) -> WeightFiles:
    """Open the run's last weights. They can be read to the end although a run that goes on removes older checkpoints.

    Raises InvalidInput as `weights_of_run` does, and where checkpoints are removed sooner than they can be checked.
    """
    for _ in range(_TRIES):
        latest = name_of_latest(run.folder.checkpoints)
        try:
            return open_weights(weights_of_run(run)).hold()
        except InvalidInput:
            if name_of_latest(run.folder.checkpoints) == latest:
                raise
    message = f"{_TRIES} checkpoints were removed before they could be read; wait for the end of the run"
    raise InvalidInput(message, path=str(run.folder.path))


_TRIES = 5


def weights_of_run(run: TrainedRun) -> Path:
    """Return the path of the run's last weights: weights.safetensors, the index of those in parts, or the folder of a
    checkpoint whose hashes were checked.

    Raises InvalidInput where there is neither, or where the checkpoint is damaged or lacks a part.
    """
    folder = run.folder
    latest = name_of_latest(folder.checkpoints)
    finished = [path for path in (folder.weights, folder.weights_index) if path.is_file()]
    if finished and latest in (None, _summarised(folder)):
        return finished[0]
    if latest is None:
        raise InvalidInput("the run has not come to its first checkpoint: there are no weights", path=str(folder.path))
    parts = partial(parts_of_checkpoint, plan=run.plan)  # it may be of the plan before this one
    checkpoint = open_latest(folder.checkpoints, parts)
    checkpoint.require(parts)
    return checkpoint.folder


def _summarised(folder: RunFolder) -> str | None:
    """Return the name of the checkpoint with which the run last ended; its final weights are those of it."""
    try:
        return Path(json.loads(folder.summary.read_text(encoding="utf-8"))["checkpoint_path"]).name
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # the run was ended before it wrote its summary
