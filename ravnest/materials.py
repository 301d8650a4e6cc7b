"""The user's code made into objects: the data, the model on the meta device, the captured model.

Decides where the job's factories are looked for. Used by `plan` and by `run`, so that both see the same model.
"""

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ravnest.errors import InvalidInput
from ravnest.factories import call, resolve
from ravnest.job import JobConfig
from ravnest.runtime.batches import sample_batch
from ravnest.splitting import CapturedModel, build_model, capture, initial_weights


def search_dirs(job_file: str | Path) -> tuple[Path, ...]:
    """Where `package.module:attribute` is looked for: the job file's folder, then the folder one works in."""
    folder = Path(job_file).resolve().parent
    here = Path.cwd()
    return (folder,) if folder == here else (folder, here)


def load_data(job: JobConfig, job_file: str | Path) -> Any:
    """What the data factory returns, checked to have `train` and `held_out` of some length."""
    data = call(job.data, search_dirs(job_file), path=str(job_file), key="data.factory")
    for part in ("train", "held_out"):
        if not hasattr(getattr(data, part, None), "__len__"):
            raise InvalidInput(
                f"{job.data.factory!r} must return an object with `train` and `held_out` datasets of known length;"
                f" `{part}` is missing or has none",
                path=str(job_file),
                key="data.factory",
            )
    return data


def capture_job(job: JobConfig, job_file: str | Path, data: Any) -> CapturedModel:
    """The job's model, captured on the meta device with the first micro-batch of the training set."""
    inputs, _ = sample_batch(data, job.micro_batch)
    return capture(make_model(job, job_file, "meta"), inputs)


def make_model(job: JobConfig, job_file: str | Path, device: str = "cpu") -> nn.Module:
    """The job's model, unmodified; on "meta" it allocates nothing."""
    dirs = search_dirs(job_file)
    return build_model(
        job.model.model_dump(),
        device,
        resolve=lambda reference: resolve(reference, dirs, path=str(job_file), key="model.factory"),
    )


def make_weights(job: JobConfig, job_file: str | Path) -> dict[str, Tensor]:
    """The initial weights and buffers that the job's seed gives, by name."""
    return initial_weights(lambda: make_model(job, job_file), job.seed)
