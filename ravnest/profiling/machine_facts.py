"""Facts about the machine that this process is on: what it is, and whether a job's code and data work there.

In: nothing, or a job. Out: versions, memory, processors, devices and the clock; problems with the job's code; and the
size and a digest of its data. This module collects facts and does not judge them; findings.py compares the machines.
"""

import hashlib
import os
import platform
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import torch

from ravnest.errors import InvalidInput
from ravnest.factories import describe, resolve
from ravnest.free_memory import free_bytes
from ravnest.job.config import Job
from ravnest.job.materials import load_data, search_dirs
from ravnest.training.batches import arguments, fetch, target_tensors
from ravnest.training.fingerprint import sampled

CPU = "cpu"
"""The name of a machine's processors as a device, beside cuda:0 and so on."""

VERSIONS = ("torch", "ray", "pyzmq", "msgspec")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_OURS = ("ravnest", "ravnest_errors", "cluster_planner", "ring_allreduce", "ring_timing")
_DIGEST_CHARACTERS = 12


@dataclass(frozen=True)
class CudaDeviceFacts:
    """A CUDA device with its memory."""

    name: str
    model: str
    memory_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class MachineFacts:
    """Facts about a machine. `machine_id` is equal for all containers and namespaces of one running system."""

    hostname: str
    machine_id: str
    python: str
    ravnest: str
    """The version and a digest of the source, since development installs may differ in the source alone."""
    versions: dict[str, str]
    cores: int
    memory_bytes: int
    available_bytes: int
    """What this process can still get; a container may limit it to less than its machine has."""
    machine_available_bytes: int
    devices: tuple[CudaDeviceFacts, ...]
    wall_s: float
    load: float
    """The mean number of processes that wanted to run, over the last minute."""


def own_addresses() -> set[str]:
    """Returns the addresses of this machine's network cards, loopback among them, as text."""
    return {one.address.partition("%")[0] for card in psutil.net_if_addrs().values() for one in card}


def machine_facts() -> MachineFacts:
    """Returns the facts about this machine, as they are now."""
    memory = psutil.virtual_memory()
    return MachineFacts(
        hostname=socket.gethostname(),
        machine_id=_BOOT_ID.read_text(encoding="ascii").strip() if _BOOT_ID.exists() else socket.gethostname(),
        python=platform.python_version(),
        ravnest=f"{_version('ravnest')} ({source_digest()})",
        versions={name: _version(name) for name in VERSIONS},
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=memory.total,
        available_bytes=min(memory.available, free_bytes()),
        machine_available_bytes=memory.available,
        devices=cuda_devices(),
        wall_s=time.time(),
        load=os.getloadavg()[0],
    )


def source_digest() -> str:
    """Returns a digest of all Python files of ravnest's packages, as they are on this machine."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for package in _OURS:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:_DIGEST_CHARACTERS]


def cuda_devices() -> tuple[CudaDeviceFacts, ...]:
    """Returns the CUDA devices that torch finds; empty where there is none."""
    if not torch.cuda.is_available():
        return ()
    found = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        found.append(CudaDeviceFacts(f"cuda:{index}", torch.cuda.get_device_name(index), total, free))
    return tuple(found)


def _version(package: str) -> str:
    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError:
        return "not installed"


_DIGEST_CHARACTERS = 12


@dataclass(frozen=True)
class DataFacts:
    """The sizes of the data as this machine reads it, and a digest of the first and last sample of both sets.

    The digest is empty where reading one sample twice gave two results, as with datasets that augment.
    """

    train: int
    held_out: int
    digest: str


@dataclass(frozen=True)
class JobFacts:
    """Problems with a job, one line each, and its data; None where it was not asked for or cannot be read."""

    problems: tuple[str, ...]
    data: DataFacts | None


def check_job(job: Job, job_file: str, *, reads_data: bool) -> JobFacts:
    """Imports the factories of model, loss, metrics and data, and reads samples if `reads_data`. Raises nothing."""
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
        data = load_data(job, job_file)
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
        for index in sampled(count, 2):
            inputs, target = fetch(dataset, [index])
            by_position, by_name = arguments(inputs)
            for tensor in (*by_position, *by_name.values(), *target_tensors(target)):
                digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
                digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:_DIGEST_CHARACTERS]


def _without_place(error: InvalidInput) -> str:
    """Returns the error without its path, which is that of a copy and says nothing to the user."""
    return f"{error.key}: {error.message}" if error.key and error.path and Path(error.path).name else str(error)
