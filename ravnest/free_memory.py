"""How much memory this process can still get before the kernel ends it.

In: the files in which the kernel tells it. Out: bytes. What counts is the least of what the machine has available, swap
included, and of what the limits of the process's control group, and of the groups around it, still leave.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil

_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_NEWER = ("memory.max", "memory.current", "inactive_file")
_OLDER = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
"""The files of control groups of version 2 and of version 1: the limit, the use, and the line of memory.stat with the
part of the use that the kernel gives up first."""


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
