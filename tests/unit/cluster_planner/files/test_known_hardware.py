"""Hardware is found by the names that people and drivers give it, and stands for what a node does not state."""

import re
from pathlib import Path

import pytest

from cluster_planner import InvalidInput, load_fleet
from cluster_planner.files.known_hardware import KNOWN, LENT, SUSTAINED, hardware_named


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("rtx 3060", "rtx 3060"),
        ("RTX-3060", "rtx 3060"),
        ("NVIDIA GeForce RTX 3060 Ti", "rtx 3060 ti"),
        ("rtx3080", "rtx 3080"),
        ("GTX1080Ti", "gtx 1080 ti"),
        ("Tesla T4", "t4"),
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("RTX 4070 SUPER", "rtx 4070 super"),
        ("Laptop", "laptop"),
    ],
)
def test_a_name_may_be_written_in_many_ways(text: str, name: str) -> None:
    assert hardware_named(text) is KNOWN[name]


def test_a_memory_in_the_name_is_that_of_the_card() -> None:
    small, large = KNOWN["a100"], hardware_named("NVIDIA A100-SXM4-80GB")
    assert (large.gflops, large.memory_gb) == (small.gflops, 2 * small.memory_gb)


def test_an_unknown_name_is_told_with_those_that_are_alike() -> None:
    with pytest.raises(ValueError, match=r"'rtx 3065'.* did you mean rtx 3060.*\? Else give gflops"):
        hardware_named("rtx 3065")
    with pytest.raises(ValueError, match=r"`ravnest explain hardware`.*give gflops and memory_gb") as told:
        hardware_named("abacus")
    assert len(str(told.value)) < 200


def test_the_file_reference_lists_all_names() -> None:
    reference = (Path(__file__).parents[4] / "docs/file-formats.md").read_text(encoding="utf-8")
    (row,) = [line for line in reference.splitlines() if line.startswith("| `hardware` |")]
    assert re.findall(r"`([^`]+)`", row.partition("Known are ")[2]) == sorted(KNOWN, key=lambda name: name not in CPUS)


CPUS = ("laptop", "desktop")


def fleet(folder: Path, node: str) -> Path:
    path = folder / "nodes.yaml"
    path.write_text(f"nodes:\n  - {{name: desk, up_mbps: 40, down_mbps: 40, {node}}}\n", encoding="utf-8")
    return path


def test_a_node_has_what_is_assumed_of_its_hardware_unless_it_states_it_and_that_is_told(tmp_path: Path) -> None:
    told: list[str] = []
    (node,) = load_fleet(fleet(tmp_path, "hardware: RTX 3090, memory_gb: 12"), remark=told.append).nodes
    assert node.flops_per_s == pytest.approx(35.6e12 * SUSTAINED)
    assert (node.memory_bytes, node.device) == (12e9, "cuda")
    (said,) = told
    assert "nodes[0].gflops: 8,900 GFLOP/s of desk is assumed from its hardware, rtx 3090" in said
    told.clear()
    load_fleet(fleet(tmp_path, "hardware: RTX 3090"), remark=told.append)
    (said,) = told  # one line for the machine, and not one for each figure
    assert "nodes[0].gflops, memory_gb: 8,900 GFLOP/s and 2" in said
    assert "GB of desk are assumed from its hardware, rtx 3090; `ravnest profile` measures them" in said
    (node,) = load_fleet(fleet(tmp_path, "hardware: rtx 3090, gflops: 5, device: cpu"), remark=told.append).nodes
    assert (node.flops_per_s, node.memory_bytes, node.device) == (5e9, round(24e9 * LENT), "cpu")


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ("gflops: 5", r"nodes\[0\]\.memory_gb: is required and missing"),
        ("memory_gb: 5", r"nodes\[0\]\.gflops: is required and missing"),
        ("hardware: abacus", r"nodes\[0\]\.hardware: .*'abacus'"),
    ],
)
def test_a_node_states_both_or_its_hardware(tmp_path: Path, node: str, expected: str) -> None:
    with pytest.raises(InvalidInput, match=expected):
        load_fleet(fleet(tmp_path, node))
