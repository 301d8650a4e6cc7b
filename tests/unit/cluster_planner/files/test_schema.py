from pathlib import Path

from cluster_planner.files.schema import SHOWN
from cluster_planner.files.yaml_files import load_fleet

NODE = "{{name: {}, gflops: {}, memory_gb: {}, up_mbps: {}, down_mbps: {}}}"


def said(tmp_path: Path, *nodes: str, rest: str = "") -> list[str]:
    path, heard = tmp_path / "nodes.yaml", list[str]()
    path.write_text(f"nodes: [{', '.join(nodes)}]\n{rest}", encoding="utf-8")
    assert load_fleet(path) == load_fleet(path, heard.append)
    return heard


def test_figures_of_the_fastest_machines_are_not_doubted(tmp_path: Path) -> None:
    big = NODE.format("big", 1e8, 16e3, 1e5, 1e5)
    links = "links: [{between: [big, other], latency_ms: 0.1, mbps: 100000}]\n"
    assert said(tmp_path, big, NODE.format("other", 1, 1, 1, 1), rest=links) == []


def test_units_mistaken_by_powers_of_ten_are_named_with_their_keys(tmp_path: Path) -> None:
    cases = {
        "gflops": (NODE.format("a", 9e8, 8, 40, 40), "900,000,000 GFLOP/s of a"),
        "memory_gb": (NODE.format("a", 900, 20480, 40, 40), "20,480 GB of a"),
        "up_mbps": (NODE.format("a", 900, 8, 20_000_000, 40), "20,000,000 Mbit/s of a"),
        "down_mbps": (NODE.format("a", 900, 8, 40, 20_000_000), "20,000,000 Mbit/s of a"),
    }
    for key, (node, words) in cases.items():
        (line,) = said(tmp_path, NODE.format("b", 1, 1, 1, 1), node)
        assert line.startswith(f"nodes[1].{key}: {words} is more than any machine has")
    links = "links: [{between: [a, b], latency_ms: 0.1, mbps: 1000000}]\n"
    (line,) = said(tmp_path, *(NODE.format(name, 1, 1, 1, 1) for name in "ab"), rest=links)
    assert line.startswith("links[0].mbps: 1,000,000 Mbit/s between a and b")


def test_a_cap_that_caps_nothing_is_named(tmp_path: Path) -> None:
    caps = "constraints: {cap: [{node: a, up_mbps: 200, memory_gb: 1}]}\n"
    (line,) = said(tmp_path, NODE.format("a", 1, 4, 20, 20), rest=caps)
    assert line == "constraints.cap[0].up_mbps: 200 caps nothing: a has 20"
    less = "constraints: {cap: [{node: a, up_mbps: 20}]}\n"
    assert said(tmp_path, NODE.format("a", 1, 4, 20, 20), rest=less) == []


def test_many_remarks_are_counted(tmp_path: Path) -> None:
    lines = said(tmp_path, *(NODE.format(f"n{i}", 1e12, 1, 1, 1) for i in range(SHOWN + 3)))
    assert len(lines) == SHOWN + 1
    assert lines[-1] == "and 3 remarks more"
