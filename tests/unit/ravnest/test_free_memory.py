from pathlib import Path

import psutil
import pytest

from ravnest.free_memory import free_bytes


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
