"""Whether this machine can run a job's own code and read its data, and whether the data is what others have.

Looks, and names what failed in one line; the driver compares.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ravnest.errors import InvalidInput
from ravnest.factories import describe, resolve
from ravnest.job.config import Job
from ravnest.job.materials import load_data, search_dirs
from ravnest.training.batches import arguments, fetch

_DIGEST_CHARACTERS = 12


@dataclass(frozen=True)
class DataFacts:
    """Of the data as it is read here. `digest`: of the first and last sample of both sets; empty where reading the
    same sample twice gave two answers, as datasets that augment do."""

    train: int
    held_out: int
    digest: str


@dataclass(frozen=True)
class JobFacts:
    """`problems`: one line each; `data` None where it was not asked for or cannot be read."""

    problems: tuple[str, ...]
    data: DataFacts | None


def check_job(job: Job, job_file: str, *, reads_data: bool) -> JobFacts:
    """Import the factories of model, loss, metrics and data, and read samples where the node has to."""
    problems = []
    for key, factory in job.references:
        if key == "sample":
            continue  # only the driver's machine calls it
        try:
            resolve(factory, search_dirs(job_file), key=key)
        except InvalidInput as error:
            problems.append(str(error))
    if not reads_data or any(line.startswith("data.factory") for line in problems):
        return JobFacts(tuple(problems), None)
    try:
        data: Any = load_data(job, job_file)
        facts = DataFacts(len(data.train), len(data.held_out), _digest([data.train, data.held_out]))
    except InvalidInput as error:
        return JobFacts((*problems, _without_place(error)), None)
    except Exception as error:  # noqa: BLE001 - the user's own code: whatever it raises is told
        return JobFacts((*problems, f"reading the data raised {describe(error)}"), None)
    return JobFacts(tuple(problems), facts)


def _digest(datasets: Sequence[Any]) -> str:
    first, again = (_read(datasets) for _ in range(2))
    return first if first == again else ""


def _read(datasets: Sequence[Any]) -> str:
    digest = hashlib.sha256()
    for dataset in datasets:
        count = len(dataset)
        for index in sorted({0, count - 1} if count else ()):
            inputs, target = fetch(dataset, [index])
            by_position, by_name = arguments(inputs)
            for tensor in (*by_position, *by_name.values(), target):
                digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
                digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:_DIGEST_CHARACTERS]


def _without_place(error: InvalidInput) -> str:
    """The file is a copy on that machine, whose path says nothing to the user."""
    return f"{error.key}: {error.message}" if error.key and error.path and Path(error.path).name else str(error)
