"""Makes what a job names: the data, the model, the captured model and the loss.

In: a job, and the file that it was read from, which says where the user's code is looked for. Out: the objects, or an
InvalidInput at the job's key. `plan` and `run` both use this module, so that they see the same model.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from cluster_planner import Plan
from ravnest.errors import InvalidInput, ModelNotSplittable, naming
from ravnest.factories import FactoryConfig, call, resolve, user_code
from ravnest.job.config import MOST_WORKERS, Job
from ravnest.splitting import CapturedModel, build_model, capture
from ravnest.training.batches import Inputs, Part, SampleKeys, SampleSet, Target, arguments, fetch, sample_batch
from ravnest.training.draws import generators_kept, numpy_and_python_seeded, seed_generators, seed_of
from ravnest.training.loss_parameters import LOSS_PREFIX, loss_specs, module_with_parameters
from ravnest.training.losses import Loss, build_loss, outputs_read
from ravnest.training.optimizer import expected_updates, lr_ratio
from ravnest.training.sampler import ENDLESS, derive_seed
from ravnest.training.streams import NumberedStream, bookmarks_folder, is_stream, sampler_of


def search_dirs(job_file: str | Path) -> tuple[Path, ...]:
    """The folders where `package.module:attribute` is looked for: the job file's, then the current one."""
    folder = Path(job_file).resolve().parent
    here = Path.cwd()
    return (folder,) if folder == here else (folder, here)


@dataclass(frozen=True)
class JobData:
    """The datasets of a job, and what the user's factory returned. Samples of a stream have numbers here, too."""

    train: SampleSet
    held_out: SampleSet
    given: Any
    """What the factory returned: what `sample` is called with, and where `baselines` are looked for."""
    workers: int = 0
    """Processes that read ahead in each first and last stage; 0: the stage reads itself."""

    def part(self, name: Part) -> SampleSet:
        """The set of that name."""
        return self.train if name == "train" else self.held_out


def load_data(job: Job, job_file: str | Path) -> JobData:
    """What the data factory returns: an object (or a dict) with `train` and `held_out`, whose lengths are known.

    `train` may be a stream instead (training/streams.py), of which samples can only be read one after another.
    Either may be a torch DataLoader, of which the dataset, the collate function and the number of workers are taken.
    The object may have a `collate_fn` and `workers` for both; the job's own keys count before all of these. The factory
    is called with the generators of torch, numpy and Python seeded by the job's seed, so that one which divides or
    makes its data at random (random_split) gives the same in every process. Raises InvalidInput at `data` where the
    factory fails or returns something else.
    """
    path, key = str(job_file), "data.factory"
    with generators_kept():
        seed_generators(seed_of(job.seed))
        given = call(job.data, search_dirs(job_file), path=path, key=key)
    collate: Any = _attribute(given, "collate_fn")
    if collate is not None and not callable(collate):
        raise InvalidInput(f"its `collate_fn` is {type(collate).__name__}, which cannot be called", path=path, key=key)
    workers: Any = _attribute(given, "workers") or 0
    if not isinstance(workers, int) or not 0 <= workers <= MOST_WORKERS:
        raise InvalidInput(f"its `workers` must be a number up to {MOST_WORKERS}, not {workers!r}", path=path, key=key)
    wanted = None
    if job.data.collate_fn is not None:
        wanted = resolve(job.data.collate_fn, search_dirs(job_file), path=path, key="data.collate_fn")
    sets: dict[str, SampleSet] = {}
    for part in ("train", "held_out"):
        value: Any = _attribute(given, part)
        dataset, own, its_workers = value, None, 0
        if isinstance(value, DataLoader):
            with naming(job_file, key):
                dataset, own, its_workers = _of_loader(value, part)
        if part == "train" and is_stream(dataset):
            with naming(job_file):
                dataset = NumberedStream(dataset, job.seed, bookmarks_folder(job.data.said, job.seed))
        elif is_stream(dataset):
            message = f"`{part}` is a {type(dataset).__name__}, whose samples have no numbers"
            hint = "take some: list(itertools.islice(iter(stream), 1000))"
            raise InvalidInput(message, path=path, key=key, hint=hint)
        if not hasattr(dataset, "__len__"):
            lack = "is missing" if dataset is None else "has no `__len__`"
            raise InvalidInput(
                f"{job.data.factory!r} must return an object with `train` and `held_out` datasets of known length;"
                f" it returned {type(given).__name__}, whose `{part}` {lack}",
                path=path,
                key=key,
            )
        with user_code(f"the length of `{part}`", path=path, key=key):
            len(dataset)
        keys = SampleKeys(job.data.inputs, job.data.targets)
        sets[part] = SampleSet(dataset, part, job.seed, wanted or own or collate, keys)
        workers = max(workers, its_workers)
    if job.data.workers is not None:
        workers = job.data.workers
    data = JobData(sets["train"], sets["held_out"], given, workers)
    with user_code("`baselines`", path=path, key=key):
        baselines_of(data)  # before training: they are shown at its end
    return data


def _attribute(given: Any, name: str) -> Any:
    return given.get(name) if isinstance(given, Mapping) else getattr(given, name, None)


def _of_loader(loader: Any, part: str) -> tuple[Any, Any, int]:
    """The dataset, the collate function (None for torch's own) and the workers of a DataLoader.

    Its batch_size, shuffle and drop_last are the job's to say. Raises InvalidInput where it does what a run cannot.
    """
    what, hint = f"`{part}` is a DataLoader", None
    sampler = loader.sampler
    if loader.batch_sampler is None:
        what += " with batch_size=None"
        hint = "let the dataset give single samples, and join them with collate_fn"
    elif type(loader.batch_sampler) is not BatchSampler:
        what += f" with a batch sampler of its own ({type(loader.batch_sampler).__name__})"
        hint = "leave it out: the job's micro_batch and seed say which samples make a batch"
    elif not is_stream(loader.dataset) and (
        type(sampler) not in (SequentialSampler, RandomSampler) or getattr(sampler, "replacement", False)
    ):
        what += f" with a sampler of its own ({type(sampler).__name__})"
        hint = "leave it out: every epoch is shuffled, and clusters share it; for other weights, repeat samples"
    elif loader.worker_init_fn is not None:
        what += " with a worker_init_fn"
        hint = "leave it out: generators are seeded for each sample, and workers call the data factory themselves"
    if hint is not None:
        raise InvalidInput(f"{what}: a run cannot keep to that", hint=hint)
    own = None if loader.collate_fn is default_collate else loader.collate_fn
    return loader.dataset, own, min(loader.num_workers, MOST_WORKERS)


def baselines_of(data: JobData) -> dict[str, float]:
    """The held-out losses of other models that the user's data names; empty where it has no `baselines`."""
    return {str(name): float(value) for name, value in (_attribute(data.given, "baselines") or {}).items()}


def total_samples(job: Job, dataset_size: int, job_file: str | Path) -> int | None:
    """The fleet's samples at which the run ends; None when it ends by time.

    Raises InvalidInput where `stop.epochs` of this training set is less than one update, or beyond counting.
    """
    if job.stop.epochs is None:
        return job.stop.samples
    if dataset_size == ENDLESS:
        message = "`train` is a stream, and nobody knows how many samples an epoch of it has"
        raise InvalidInput(message, path=str(job_file), key="stop.epochs", hint="stop by samples or minutes")
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


def check_shares(job: Job, job_file: str | Path, plan: Plan, train: SampleSet) -> None:
    """Raises InvalidInput where some cluster's part of the training set is less than one micro-batch, or its updates
    leave nothing to decay over after the warm-up.
    """
    total = total_samples(job, len(train), job_file)
    with naming(job_file):
        for cluster in plan.clusters:
            begin, end = share = plan.share(cluster.name)
            sampler_of(train, job.seed, share, job.micro_batch)
            if total is not None:
                updates = expected_updates(total * (end - begin), job.micro_batch, job.update_every)
                lr_ratio(job.optimizer.schedule, 0, updates)


def first_batch(job: Job, job_file: str | Path, data: JobData) -> tuple[Inputs, Target]:
    """The first micro-batch of the training set; the first sample of the held-out set is read too.

    Raises InvalidInput where a dataset raises, has other samples than (inputs, target), or has too few.
    """
    with naming(job_file):
        batch = sample_batch(data, job.micro_batch)
        if len(data.held_out):
            fetch(data.held_out, [0])
    return batch


def capture_job(
    job: Job, job_file: str | Path, data: JobData, shorten: Callable[[nn.Module], None] = lambda model: None
) -> CapturedModel:
    """The job's model, captured on the meta device with the first micro-batch of the training set.

    `shorten` may take parts of the model away before it is captured. A model that cannot be built or captured without
    values is captured with them; `needs_values` then says why. Raises InvalidInput at the data, or at `model`.
    """
    return capture_on(job, job_file, first_batch(job, job_file, data)[0], shorten)


def capture_on(
    job: Job, job_file: str | Path, inputs: Inputs, shorten: Callable[[nn.Module], None] = lambda model: None
) -> CapturedModel:
    """As `capture_job`, with the inputs of a micro-batch, of which only shapes and dtypes matter."""
    model, why = _without_values(job, job_file)
    shorten(model)
    with naming(job_file, "model"):
        captured = _captured(job, job_file, model, inputs, why, shorten)
    with naming(job_file):
        return captured.with_loss(*loss_specs(make_loss(job, job_file)))


def _captured(
    job: Job, job_file: str | Path, model: nn.Module, inputs: Inputs, why: str, shorten: Callable[[nn.Module], None]
) -> CapturedModel:
    """`why`: why the model has values; empty where it has none, in which case it is tried without them first."""
    select = outputs_read(job.loss, job.metrics)
    if not why:
        try:
            return capture(model, *arguments(inputs), select=select)
        except ModelNotSplittable as error:
            if "meta" not in error.message:
                raise
            model, why = _with_values(job, job_file), error.message
            shorten(model)
    return replace(capture(model, *arguments(inputs), select=select), needs_values=why)


def make_model(job: Job, job_file: str | Path, device: str = "cpu") -> nn.Module:
    """The job's model, unmodified; on "meta" it allocates nothing, unless it cannot be built there.

    Raises InvalidInput at `model`.
    """
    return _without_values(job, job_file)[0] if device == "meta" else _built(job, job_file, device)


def _without_values(job: Job, job_file: str | Path) -> tuple[nn.Module, str]:
    """The model on the meta device, and an empty text; where it cannot be built there, the model on the CPU, and why.

    Constructors that read a value (`.item()`) fail on the meta device, and so does what loads weights in its own way.
    """
    try:
        return _built(job, job_file, "meta"), ""
    except InvalidInput as error:
        why = error.message
    return _with_values(job, job_file), why  # whose error, if it fails too, is the user's own


def _with_values(job: Job, job_file: str | Path) -> nn.Module:
    """The model on the CPU, with the job's seed: what its constructor draws is the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.seed)
        return _built(job, job_file, "cpu")


def _built(job: Job, job_file: str | Path, device: str) -> nn.Module:
    """The model as its constructor makes it. What that draws from numpy or Python is the same in every process."""
    dirs = search_dirs(job_file)
    with naming(job_file, "model"), numpy_and_python_seeded(seed_of(job.seed)):
        model = build_model(
            job.model.model_dump(),
            device,
            resolve=lambda reference: resolve(reference, dirs, path=str(job_file), key="model.factory"),
        )
    with naming(job_file):
        _freeze(model, job.frozen)
    return model


def _freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    for pattern in patterns:
        found = [parameter for name, parameter in model.named_parameters() if fnmatchcase(name, pattern)]
        if not found and not pattern.startswith(LOSS_PREFIX):
            raise InvalidInput(f"{pattern!r} matches no parameter of the model", key="frozen")
        for parameter in found:
            parameter.requires_grad_(False)


def make_loss(job: Job, job_file: str | Path) -> Loss | None:
    """The loss that a factory of the user's makes, with the values that the job's seed gives; None for any other.

    Parameters that `frozen` names are not trained. Raises InvalidInput at `loss`.
    """
    if not isinstance(job.loss, FactoryConfig):
        return None
    seed = derive_seed(job.seed, "", 0, 0, "loss")
    with torch.random.fork_rng(devices=[]), numpy_and_python_seeded(seed), naming(job_file, "loss"):
        torch.manual_seed(seed)
        loss = build_loss(job.loss, search_dirs(job_file))
        module = module_with_parameters(loss)
    for name, parameter in () if module is None else module.named_parameters():
        if any(fnmatchcase(f"{LOSS_PREFIX}{name}", pattern) for pattern in job.frozen):
            parameter.requires_grad_(False)
    return loss
