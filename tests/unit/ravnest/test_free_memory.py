import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ravnest.free_memory import free_bytes, give_back_freed


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory:
        available = 8_000_000

    class Swap:
        free = 1_000_000

    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    monkeypatch.setattr(psutil, "swap_memory", Swap)


def group(folder: Path, **contents: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")
    return folder


def test_without_control_groups_it_is_what_the_machine_has(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "nowhere") == 9_000_000


def test_a_group_without_a_limit_leaves_it_at_that(tmp_path: Path) -> None:
    group(tmp_path, memory__max="max", memory__current="5000", memory__stat="anon 4000\ninactive_file 100")
    assert free_bytes(tmp_path) == 9_000_000


@pytest.mark.parametrize(
    ("limit", "used", "cached", "left"), [(6_000, 5_000, 700, 1_700), (6_000, 7_000, 0, 0), (10**9, 0, 0, 9_000_000)]
)
def test_a_limit_counts_less_what_is_used_and_cannot_be_given_up(
    tmp_path: Path, limit: int, used: int, cached: int, left: int
) -> None:
    newer = group(
        tmp_path / "v2",
        memory__max=str(limit),
        memory__current=str(used),
        memory__stat=f"anon 4000\ninactive_file {cached}",
    )
    older = tmp_path / "v1"
    group(
        older / "memory",
        memory__limit_in_bytes=str(limit),
        memory__usage_in_bytes=str(used),
        memory__stat=f"cache 1\ntotal_inactive_file {cached}",
    )
    assert free_bytes(newer) == free_bytes(older) == left


def test_the_groups_that_a_process_lies_in_count_too(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("4:cpu,memory:/service/worker\n1:name=systemd:/service\n0::/user/session\n")
    names = {"memory__limit_in_bytes": "6000", "memory__usage_in_bytes": "5000"}
    group(tmp_path / "memory" / "service", **names, memory__stat="total_inactive_file 0")
    assert free_bytes(tmp_path, own) == 1_000
    group(tmp_path / "user" / "session", memory__max="600", memory__current="0", memory__stat="inactive_file 0")
    assert free_bytes(tmp_path, own) == 600
    own.write_text("0::/../..\n")
    assert free_bytes(tmp_path, own) == 9_000_000


OTHER_THREADS = """
import threading
from ravnest.free_memory import give_back_freed, share_freed
assert {shared} == 0 or share_freed()
import psutil, torch

def resident():
    return psutil.Process().memory_info().rss

def take(numbers, small):
    # Blocks of 2 MB, each behind a small one that stays: none of them can be at the end of a heap.
    blocks = []
    for _ in range(50):
        blocks.append(torch.zeros(numbers))
        small.append(torch.zeros(100))

small, freed, ended = [], [threading.Event(), threading.Event()], threading.Event()

def live(numbers, done):
    take(numbers, small)
    done.set()
    ended.wait()  # as long as a thread lives, no other one is given its heap

def start(numbers, done):
    threading.Thread(target=live, args=(numbers, done), daemon=True).start()
    done.wait(60)

torch.zeros(8_000_000)  # the allocator takes blocks of that size from its heap from now on
start(500_000, freed[0])
once = resident()
start(480_000, freed[1])  # somewhat smaller: an aligned block does not fit into a place of its own size
both = resident()
give_back_freed()
print((both - once) / 1e8, (both - resident()) / 1e8)
ended.set()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc has heaps of threads")
@pytest.mark.parametrize("shared", [True, False])
def test_what_one_thread_has_freed_is_used_by_others_where_it_is_shared_and_given_back(shared: bool) -> None:
    """In a process of its own: 100 MB that one thread has freed are enough for another one's, and go back then."""
    code = OTHER_THREADS.format(shared=int(shared))
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    grown, given_back = map(float, ended.stdout.split())
    assert grown < 0.3 if shared else grown > 0.7
    assert given_back > 0.5


HUGE_PAGES = """
import os
from pathlib import Path
import torch
from ravnest.free_memory import take_huge_pages
if {before}:
    torch.ones(2)
take_huge_pages()
assert "THP_MEM_ALLOC_ENABLE" not in os.environ
large = torch.empty(8 << 20, dtype=torch.uint8)
place, inside = large.data_ptr() + (4 << 20), False
for line in Path("/proc/self/smaps").read_text().splitlines():
    first = line.split()[0]
    if not first.endswith(":"):
        begin, end = (int(number, 16) for number in first.split("-"))
        inside = begin <= place < end
    elif inside and first == "VmFlags:":
        print("hg" in line.split())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for its pages")
@pytest.mark.parametrize("before", [False, True], ids=["first", "late"])
def test_large_tensors_ask_for_huge_pages_where_torch_has_made_none_before(before: bool) -> None:
    """In a process of its own, since torch looks once."""
    code = HUGE_PAGES.format(before=before)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == [str(not before)]


def test_giving_back_harms_nobody() -> None:
    kept = bytearray(b"kept" * 1000)
    give_back_freed()
    assert kept == b"kept" * 1000
