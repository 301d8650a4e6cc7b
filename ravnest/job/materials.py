"""Makes what a job names: the data, the model, the captured model, and the weights that the job's seed gives.

In: a job, and the file that it was read from, which says where the user's code is looked for. Out: the objects, or an
InvalidInput at the job's key. `plan` and `run` both use this module, so that they see the same model.
"""

import math
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from cluster_planner import Plan
from ravnest.errors import InvalidInput, naming
from ravnest.factories import call, resolve, user_code
from ravnest.job.config import Job
from ravnest.splitting import CapturedModel, build_model, capture, initial_buffers, initial_weights
from ravnest.training.batches import Inputs, arguments, fetch, sample_batch
from ravnest.training.optimizer import expected_updates, lr_ratio
from ravnest.training.sampler import Sampler


def search_dirs(job_file: str | Path) -> tuple[Path, ...]:
    """The folders where `package.module:attribute` is looked for: the job file's, then the current one."""
    folder = Path(job_file).resolve().parent
    here = Path.cwd()
    return (folder,) if folder == here else (folder, here)


def load_data(job: Job, job_file: str | Path) -> Any:
    """The object that the data factory returns. It has the datasets `train` and `held_out`, whose lengths are known.

    Raises InvalidInput at `data` where the factory fails or returns something else.
    """
    data = call(job.data, search_dirs(job_file), path=str(job_file), key="data.factory")
    for part in ("train", "held_out"):
        dataset: Any = getattr(data, part, None)
        if not hasattr(dataset, "__len__"):
            raise InvalidInput(
                f"{job.data.factory!r} must return an object with `train` and `held_out` datasets of known length;"
                f" it returned {type(data).__name__}, whose `{part}` is missing or has none",
                path=str(job_file),
                key="data.factory",
            )
        with user_code(f"the length of `{part}`", path=str(job_file), key="data.factory"):
            len(dataset)
    return data


def baselines_of(data: Any) -> dict[str, float]:
    """The held-out losses of other models that the user's data names; empty where it has no `baselines`."""
    return {str(name): float(value) for name, value in getattr(data, "baselines", {}).items()}


def total_samples(job: Job, dataset_size: int, job_file: str | Path) -> int | None:
    """The fleet's samples at which the run ends; None when it ends by time.

    Raises InvalidInput where `stop.epochs` of this training set is less than one update, or beyond counting.
    """
    if job.stop.epochs is None:
        return job.stop.samples
    samples = job.stop.epochs * dataset_size
    per_update = job.micro_batch * job.update_every
    of = f"{job.stop.epochs:g} of {dataset_size:,} samples"
    if not math.isfinite(samples):
        raise InvalidInput(f"{of} is more than can be counted", path=str(job_file), key="stop.epochs")
    if samples < per_update:
        raise InvalidInput(
            f"{of} is less than one update"
            f" (micro_batch · update_every = {job.micro_batch} · {job.update_every} = {per_update})",
            path=str(job_file),
            key="stop.epochs",
        )
    return int(samples)


def check_shares(job: Job, job_file: str | Path, plan: Plan, dataset_size: int) -> None:
    """Raises InvalidInput where some cluster's part of the training set is less than one micro-batch, or its updates
    leave nothing to decay over after the warm-up.
    """
    total = total_samples(job, dataset_size, job_file)
    with naming(job_file):
        for cluster in plan.clusters:
            begin, end = share = plan.share(cluster.name)
            Sampler(dataset_size, job.seed, share, job.micro_batch)
            if total is not None:
                updates = expected_updates(total * (end - begin), job.micro_batch, job.update_every)
                lr_ratio(job.optimizer.schedule, 0, updates)


def first_batch(job: Job, job_file: str | Path, data: Any) -> tuple[Inputs, Tensor]:
    """The first micro-batch of the training set; the first sample of the held-out set is read too.

    Raises InvalidInput where a dataset raises, has other samples than (inputs, target), or has too few.
    """
    with naming(job_file):
        batch = sample_batch(data, job.micro_batch)
        if len(data.held_out):
            fetch(data.held_out, [0])
    return batch


def capture_job(job: Job, job_file: str | Path, data: Any) -> CapturedModel:
    """The job's model, captured on the meta device with the first micro-batch of the training set.

    Raises InvalidInput at the data, or at `model`.
    """
    inputs, _ = first_batch(job, job_file, data)
    with naming(job_file, "model"):
        return capture(make_model(job, job_file, "meta"), *arguments(inputs))


def make_model(job: Job, job_file: str | Path, device: str = "cpu") -> nn.Module:
    """The job's model, unmodified; on "meta" it allocates nothing. Raises InvalidInput at `model`."""
    dirs = search_dirs(job_file)
    with naming(job_file, "model"):
        return build_model(
            job.model.model_dump(),
            device,
            resolve=lambda reference: resolve(reference, dirs, path=str(job_file), key="model.factory"),
        )


def make_weights(job: Job, job_file: str | Path) -> dict[str, Tensor]:
    """The initial weights and buffers that the job's seed gives, by name."""
    return initial_weights(lambda: make_model(job, job_file), job.seed)


def make_buffers(job: Job, job_file: str | Path) -> dict[str, Tensor]:
    """The buffers that `make_weights` makes, without ever holding all parameters in memory."""
    return initial_buffers(lambda: make_model(job, job_file), job.seed)
