"""What a machine is, as far as a run cares: versions, memory, processors, devices, its clock.

Looks, and judges nothing. Whoever compares the facts of several machines is findings.py.
"""

import hashlib
import os
import platform
import socket
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from ravnest.free_memory import free_bytes

VERSIONS = ("torch", "ray", "pyzmq", "msgspec")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_OURS = ("ravnest", "ravnest_errors", "cluster_planner", "ring_allreduce", "ring_timing")
_DIGEST_CHARACTERS = 12


@dataclass(frozen=True)
class CudaDevice:
    """One CUDA device."""

    name: str
    model: str
    memory_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class MachineFacts:
    """Of the process's own machine. `machine_id`: equal for containers and namespaces of one running system."""

    hostname: str
    machine_id: str
    python: str
    ravnest: str
    """Version, and a digest of the source: development installs differ while their versions do not."""
    versions: dict[str, str]
    cores: int
    memory_bytes: int
    available_bytes: int
    """What this process can still get: less than its machine has where a container limits it."""
    machine_available_bytes: int
    devices: tuple[CudaDevice, ...]
    wall_s: float
    load: float
    """Processes that want to run, the last minute's mean."""


def machine_facts() -> MachineFacts:
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
    """Of all Python files of our packages, as they lie on this machine."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for package in _OURS:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:_DIGEST_CHARACTERS]


def cuda_devices() -> tuple[CudaDevice, ...]:
    import torch

    if not torch.cuda.is_available():
        return ()
    found = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        found.append(CudaDevice(f"cuda:{index}", torch.cuda.get_device_name(index), total, free))
    return tuple(found)


def _version(package: str) -> str:
    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError:
        return "not installed"
