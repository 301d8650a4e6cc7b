"""How much memory this process can still get, before the kernel ends it.

Decides what counts: what the machine has available, swap included, and what the limit of a container leaves: of the
control group that it sees as the root. Limits of groups below that (systemd's services) are not looked for. Knows
nothing of what the memory is for.
"""

import contextlib
from pathlib import Path

import psutil

_GROUPS = Path("/sys/fs/cgroup")
_FILES = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
)
"""Limit, use, and in which file and line stands what of the use the kernel gives up first: of version 2, and of 1."""


def free_bytes(groups: Path = _GROUPS) -> int:
    """Bytes. `groups`: where control groups are mounted."""
    left: list[int] = [psutil.virtual_memory().available + psutil.swap_memory().free]
    for limit, used, statistics, cached in _FILES:
        with contextlib.suppress(OSError, ValueError, KeyError):  # not there, or "max": no limit
            lines = dict(line.split() for line in (groups / statistics).read_text().splitlines())
            used_bytes = int((groups / used).read_text()) - int(lines[cached])
            left.append(max(0, int((groups / limit).read_text()) - used_bytes))
    return min(left)
