from pathlib import Path

import pytest

from ravnest.errors import InvalidInput
from ravnest.simulator.node_trace import read_trace
from ravnest.simulator.presence import NodeChange


def read(path: Path, text: str, speed: float = 1.0, notice_s: float = 0.0) -> tuple[NodeChange, ...]:
    path.write_text(text, encoding="utf-8")
    return read_trace(path, speed=speed, noticed_after_s=2.0, notice_s=notice_s)


def test_a_trace_reads_as_changes_at_its_speed(tmp_path: Path) -> None:
    found = read(tmp_path / "t.csv", "0,add,a\n60000,add,b\n120000,remove,a\n", speed=10.0)
    assert [(each.at_s, each.node, each.kind) for each in found] == [
        (0.0, "a", "back"),
        (6.0, "b", "back"),
        (12.0, "a", "gone"),
    ]
    assert found[-1].noticed_after_s == 2.0


def test_notice_comes_before_a_node_is_gone(tmp_path: Path) -> None:
    found = read(tmp_path / "t.csv", "0,add,a\n10000,add,b\n20000,remove,a\n", notice_s=15.0)
    assert [(each.at_s, each.node, each.kind) for each in found[1:]] == [
        (5.0, "a", "notice"),
        (10.0, "b", "back"),
        (20.0, "a", "gone"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0,add", "line 1: must be milliseconds"),
        ("0,add,a\n1,leave,a", "line 2: must be milliseconds"),
        ("nan,add,a", "line 1: must be milliseconds"),
        ("0,add,a\n1,add,a", "line 2: node 'a' is there already"),
        ("0,remove,a", "line 1: node 'a' is not there"),
        ("5,add,a\n1,add,b", "line 2: its lines have to be in the order"),
        ("", "holds no change"),
        pytest.param("0,add,a\n1,add," + "b" * 200_000, "line 2: cannot be read: field larger", id="a long field"),
    ],
)
def test_errors_name_the_file_and_the_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said) as caught:
        read(tmp_path / "t.csv", text)
    assert "t.csv" in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"none\.csv"):
        read_trace(tmp_path / "none.csv", speed=1.0, noticed_after_s=0.0, notice_s=0.0)


def test_a_path_that_none_can_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_trace(tmp_path / "t\0.csv", speed=1.0, noticed_after_s=0.0, notice_s=0.0)
