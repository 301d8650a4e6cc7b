"""Memory that was freed is used again without the kernel; in processes of their own, since it is a process's setting."""

import os
import subprocess
import sys

import pytest

FAULTS = """
import resource
from ring_allreduce.transport.allocator import keep_freed_memory

def faults_of(times):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        blocks = [bytearray(1 << 20) for _ in range(8)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if {tuned}:
    print(int(keep_freed_memory()))
faults_of(2)
print(faults_of(20))
"""


def run(tuned: bool, **environment: str) -> list[int]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS.replace("{tuned}", str(tuned))],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return [int(line) for line in done.stdout.split()]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_freed_memory_is_used_again_without_fresh_pages() -> None:
    (before,) = run(tuned=False)
    kept, after = run(tuned=True)
    assert kept == 1
    pages = 20 * 8 * (1 << 20) // 4096
    assert before > pages / 2
    assert after < pages / 100


def test_who_decided_otherwise_is_heard() -> None:
    assert run(tuned=True, MALLOC_TRIM_THRESHOLD_="131072")[0] == 0
