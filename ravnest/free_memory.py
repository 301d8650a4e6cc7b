"""How much memory this process can still get before the kernel ends it, how it gives back what it has freed, and pages.

In: the files in which the kernel tells it. Out: bytes. What counts is the least of what the machine has available, swap
included, and of what the limits of the process's control group, and of the groups around it, still leave.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil

_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_NEWER = ("memory.max", "memory.current", "inactive_file")
_OLDER = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
"""The files of control groups of version 2 and of version 1: the limit, the use, and the line of memory.stat with the
part of the use that the kernel gives up first."""
_M_ARENA_MAX = -8  # of glibc's malloc.h
_HUGE_PAGES = "THP_MEM_ALLOC_ENABLE"
"""The variable by which torch asks the kernel for huge pages for tensors of 2 MiB and more."""


def free_bytes(groups: Path = _GROUPS, own: Path = _OWN) -> int:
    """Return how many bytes are left to this process.

    `groups` is where control groups are mounted, and `own` the file in which the kernel names those of this process.
    """
    left: list[int] = [psutil.virtual_memory().available + psutil.swap_memory().free]
    for folder, (limit, used, cached) in _folders(groups, own):
        with contextlib.suppress(OSError, ValueError, KeyError):  # not there, or "max": no limit
            lines = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            used_bytes = int((folder / used).read_text()) - int(lines[cached])
            left.append(max(0, int((folder / limit).read_text()) - used_bytes))
    return min(left)


def share_freed() -> bool:
    """Let what one thread of this process has freed be used again by all others. To be called before they start.

    glibc gives each thread a heap of its own, and what is freed there is of no use elsewhere: a stage's weights arrive
    in one thread, are replaced in another and averaged by a third. Returns whether the C library knows of it.
    """
    set_option = getattr(_c_library(), "mallopt", None)
    return bool(set_option is not None and set_option(_M_ARENA_MAX, 1))


def give_back_freed() -> bool:
    """Give the pages back to the kernel that this process has freed and still keeps for what comes. Returns whether
    there were any; False also where the C library does not know of it."""
    trim = getattr(_c_library(), "malloc_trim", None)
    return bool(trim is not None and trim(ctypes.c_size_t(0)))


def take_huge_pages() -> None:
    """Let torch take pages of 2 MiB for large tensors in this process. Does nothing once torch has made a tensor.

    A gradient of gigabytes takes seconds to come in pages of 4 KiB. torch looks for the variable once, at its first
    tensor, which is made here; so it is not left to the processes that this one starts. The user's own word counts.
    """
    import torch

    if _HUGE_PAGES not in os.environ:
        os.environ[_HUGE_PAGES] = "1"
        try:
            torch.empty(1)
        finally:
            del os.environ[_HUGE_PAGES]


def _c_library() -> ctypes.CDLL | None:
    with contextlib.suppress(OSError, TypeError):  # TypeError: the system has no library of the whole process
        return ctypes.CDLL(None)
    return None


def _folders(groups: Path, own: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """Yields every control group that may limit this process's memory, with the names of its files.

    A container may see its own group as the root.
    """
    named = [(groups, _NEWER, "/"), (groups / "memory", _OLDER, "/")]
    with contextlib.suppress(OSError):
        for line in own.read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0":
                named.append((groups, _NEWER, path))
            elif "memory" in controllers.split(","):
                named.append((groups / "memory", _OLDER, path))
    for root, files, path in named:
        inner = PurePosixPath(path.lstrip("/"))
        for each in (inner, *inner.parents):
            yield root / each, files
