from pathlib import Path

from experiments.churn.rehearsed_traces import cut_out
from ravnest.simulator import NodeChange
from ravnest.simulator.node_trace import read_trace

LINES = """\
1000,add,a
2000,add,b
3000,remove,a
4000,add,c
5000,add,a
6000,remove,b
9000,remove,c
"""


def _trace(folder: Path) -> Path:
    path = folder / "trace.csv"
    path.write_text(LINES)
    return path


def test_a_span_of_a_trace_begins_with_the_nodes_that_are_there(tmp_path: Path) -> None:
    lines = cut_out(_trace(tmp_path), 10.0, 0.35, 0.3, None)
    assert lines == [(0.0, "add", "b"), (500.0, "add", "c"), (1500.0, "add", "a"), (2500.0, "remove", "b")]
    cut = tmp_path / "cut.csv"
    cut.write_text("".join(f"{at_ms:.0f},{kind},{node}\n" for at_ms, kind, node in lines))
    changes = read_trace(cut, speed=10.0, noticed_after_s=20.0, notice_s=0.0)
    assert [(each.at_s, each.node) for each in changes] == [(0.0, "b"), (0.05, "c"), (0.15, "a"), (0.25, "b")]
    assert changes[-1] == NodeChange(0.25, "b", "gone", 20.0)


def test_of_a_trace_so_many_nodes_are_taken(tmp_path: Path) -> None:
    assert {node for _, _, node in cut_out(_trace(tmp_path), 10.0, 0.35, 0.3, 2)} == {"b", "c"}
