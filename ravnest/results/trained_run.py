"""What a run left, for those who use it afterwards: its plan, its job, and the files that hold its weights.

Decides which files these are: weights.safetensors, unless the run has made a checkpoint since. Reads no tensor.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from cluster_planner import Plan, load_plan
from ravnest.checkpoints.checkpoint import load_latest, name_of_latest
from ravnest.checkpoints.run_folder import RunFolder
from ravnest.driver.checkpoint_collector import parts_of_plan
from ravnest.errors import InvalidInput
from ravnest.job.config import Job, job_from_mapping, load_job


@dataclass(frozen=True)
class TrainedRun:
    """A run that has made weights, whether it has finished or not."""

    folder: RunFolder
    plan: Plan
    job: Job
    job_file: str
    """Factories are looked for in its folder."""


def open_run(path: Path, job_path: Path | None = None) -> TrainedRun:
    """The run in the folder `path`. `job_path`: a job.yaml instead of the plan's own job, such as one that has moved.

    Raises InvalidInput where there is no run, or the job's folder is gone.
    """
    folder = RunFolder(path)
    if not folder.plan.is_file():
        raise InvalidInput("no run is here: its plan.yaml is missing", path=str(path))
    plan = load_plan(folder.plan, has_run=True)
    if job_path is not None:
        return TrainedRun(folder, plan, load_job(job_path), str(job_path.resolve()))
    job = job_from_mapping(plan.job, path=str(folder.plan), under="job.")
    if not Path(plan.job_file).parent.is_dir():
        message = f"the job's folder {Path(plan.job_file).parent} is gone: name job.yaml where it lies now with --job"
        raise InvalidInput(message, path=str(folder.plan), key="job_file")
    return TrainedRun(folder, plan, job, plan.job_file)


def weights_of_run(run: TrainedRun) -> Path:
    """What holds the run's last weights: its weights.safetensors, or the folder of a checkpoint, checked by its hashes.

    Raises InvalidInput where there is neither, or the checkpoint is damaged or lacks a part.
    """
    folder = run.folder
    latest = name_of_latest(folder.checkpoints)
    if folder.weights.is_file() and latest in (None, _summarised(folder)):
        return folder.weights
    if latest is None:
        raise InvalidInput("the run has not come to its first checkpoint: there are no weights", path=str(folder.path))
    return load_latest(folder.checkpoints, parts_of_plan(run.plan)).folder


def _summarised(folder: RunFolder) -> str | None:
    """The checkpoint that the run ended with, when it last did: weights.safetensors holds the same."""
    try:
        return Path(json.loads(folder.summary.read_text(encoding="utf-8"))["checkpoint_path"]).name
    except (OSError, ValueError, KeyError, TypeError):
        return None  # it was ended before it could say so
