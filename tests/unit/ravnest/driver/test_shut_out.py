"""The file of nodes that were shut out: it is as the run's nodes are, and nothing else passes for it."""

from pathlib import Path

import pytest

from cluster_planner import Plan
from ravnest.driver.shut_out import ShutOutFile, plan_without, read_shut_out
from ravnest.errors import InvalidInput
from ravnest.recovery import NodesLeft


def test_who_is_shut_out_is_in_the_file_until_a_user_lets_it_in_again(tmp_path: Path) -> None:
    path, left, told = tmp_path / "shut-out.json", NodesLeft(), list[str]()
    file = ShutOutFile(path, left, told.append)
    left.leave("desk")
    file.keep()
    assert not path.exists()
    left.shut_out("laptop", "c1.s0: its norm was 9")
    file.keep()
    assert read_shut_out(path) == {"laptop": "c1.s0: its norm was 9"}
    left.back("laptop")
    file.keep()
    assert read_shut_out(path) == {}
    assert told == []


def test_what_the_session_before_wrote_stays(tmp_path: Path) -> None:
    path, left = tmp_path / "shut-out.json", NodesLeft()
    left.shut_out("laptop", "it lied")
    path.write_text('{"laptop": "it lied"}')
    file = ShutOutFile(path, left, lambda _: None)
    left.shut_out("desk", "it lied as well")
    file.keep()
    assert read_shut_out(path) == {"laptop": "it lied", "desk": "it lied as well"}


def test_a_disk_that_refuses_it_is_told_of_once(tmp_path: Path) -> None:
    left, told = NodesLeft(), list[str]()
    file = ShutOutFile(tmp_path / "gone" / "shut-out.json", left, told.append)
    left.shut_out("desk", "it lied")
    file.keep()
    file.keep()
    (said,) = told
    assert "cannot be written (No such file or directory)" in said


@pytest.mark.parametrize("text", [b"", b"[1]", b'{"desk": 3}', b"\xff\xfe", b"{", b"[" * 100_000])
def test_another_file_is_refused_by_name(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "shut-out.json"
    path.write_bytes(text)
    with pytest.raises(InvalidInput, match="is no") as caught:
        read_shut_out(path)
    assert caught.value.path == str(path)


def test_a_plan_in_which_nobody_was_shut_out_stays_as_it_is(plan: Plan, tmp_path: Path) -> None:
    left = NodesLeft()
    left.shut_out("of another plan", "it lied")
    left.leave(plan.fleet.names[0])
    assert plan_without(plan, left, tmp_path) is plan
