"""Freed memory stays with the process, so that the next chunk does not pay for fresh pages.

Each message that arrives is a new buffer of zmq's, freed after a few milliseconds. As it comes, glibc gives such memory
back to the system at once and asks for it again, and the kernel clears each page anew: about half of what receiving
costs. Decides how much freed memory is kept, nothing else. Other C libraries are left as they are.
"""

import ctypes
import os
from functools import cache

KEPT_BYTES = 32 * 1024 * 1024
"""Freed memory that the process keeps, at most, beyond what it uses."""

_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_MOST_MMAP_THRESHOLD_BYTES = 32 * 1024 * 1024  # glibc takes no larger one


@cache
def keep_freed_memory() -> bool:
    """Whether the allocator of this process now keeps freed memory; once is enough.

    Who set glibc's own variables (MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_) has decided otherwise.
    """
    if {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"} & os.environ.keys():
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    limits = {_MMAP_THRESHOLD: _MOST_MMAP_THRESHOLD_BYTES, _TRIM_THRESHOLD: KEPT_BYTES}
    return all(mallopt(option, limit) == 1 for option, limit in limits.items())
