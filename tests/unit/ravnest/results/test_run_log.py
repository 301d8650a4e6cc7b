import json
from pathlib import Path

import pytest

from cluster_planner import Plan, save_plan
from ravnest.checkpoints.run_folder import RunFolder
from ravnest.driver.observe.report import ClusterProgress, NoticeEvent, PhaseEvent, ProgressEvent, as_plain
from ravnest.errors import InvalidInput
from ravnest.results.run_log import (
    events_in,
    last_progress,
    lines_of,
    lines_of_stage,
    lines_since,
    log_of,
    news_of,
    stages_of,
)
from tests.unit.ravnest.results.test_run_state import PROGRESS, run_with


class Growing:
    """A run that writes one more piece each time that somebody waits, and then ends."""

    def __init__(self, path: Path, *pieces: str) -> None:
        self.path, self.pieces = path, list(pieces)

    def goes_on(self) -> bool:
        return bool(self.pieces)

    def wait(self) -> None:
        with self.path.open("a") as file:
            file.write(self.pieces.pop(0))


def test_a_file_is_followed_from_before_it_is_there_to_the_end_of_its_run(tmp_path: Path) -> None:
    run = Growing(tmp_path / "log", "one\ntw", "o\n", "", "three")
    assert list(lines_of(run.path, run.goes_on, run.wait)) == ["one\n", "two\n", "three"]


def test_without_following_it_is_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"one\n\xff")
    assert list(lines_of(tmp_path / "log", lambda: False, pytest.fail)) == ["one\n", "\ufffd"]
    assert list(lines_of(tmp_path / "none", lambda: False, pytest.fail)) == []


def test_a_log_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/c0.s1.log").write_text("Traceback")
    folder = RunFolder(tmp_path)
    assert log_of(folder, "c0.s1").read_text() == "Traceback"
    with pytest.raises(InvalidInput, match=r"has no log of '\.\./plan' \(there are: c0\.s1\)"):
        log_of(folder, "../plan")


def test_whole_lines_are_read_from_a_place_on(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert lines_since(path, 7) == ([], 0)
    path.write_bytes(b"one\ntwo\nthr")
    assert lines_since(path, 4) == (["two"], 8)
    assert lines_since(path, 8) == ([], 8)
    path.write_bytes(b"new\n")
    assert lines_since(path, 8) == (["new"], 4), "it was begun anew"


def test_news_begin_with_the_last_phase_and_progress(tmp_path: Path) -> None:
    run = run_with(tmp_path / "r", PhaseEvent("training"), NoticeEvent("long ago"), PROGRESS)
    line = json.dumps({"kind": "notice", "at_s": 5.0, **as_plain(NoticeEvent("just now"))})
    growing = Growing(run / "metrics.jsonl", line[:9], f"{line[9:]}\n")
    found = list(news_of(growing.path, growing.goes_on, growing.wait))
    assert {type(event) for event in found[:2]} == {PhaseEvent, type(PROGRESS)}
    assert found[2:] == [NoticeEvent("just now")]
    assert events_in(
        [line, '{"kind":"update","at_s":1,"cluster":"c0","stage":0,"update":1,"lr":0,"staleness":[]}']
    ) == [NoticeEvent("just now")]


def progress_at(elapsed_s: float, *losses: float | None) -> ProgressEvent:
    """The progress of as many clusters at one second of a session."""
    each = (ClusterProgress(f"c{i}", 1, 1.0, loss, 0, 1, 0) for i, loss in enumerate(losses))
    return ProgressEvent(elapsed_s, 2, None, tuple(each))


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([progress_at(1, 4.0, 6.0), progress_at(2, 3.0, None), progress_at(3, None, None)], [3.0, 6.0]),
        ([progress_at(9, 4.0, 6.0), progress_at(1, None, 2.0)], [None, 2.0]),  # of the session before
        ([progress_at(1, 4.0, 6.0), progress_at(4000, None, 2.0)], [None, 2.0]),  # more than an hour ago
        ([progress_at(1, 4.0), progress_at(2, None, 2.0)], [4.0, 2.0]),  # a cluster more
    ],
)
def test_the_last_progress_keeps_the_last_loss_of_each_cluster(
    tmp_path: Path, told: list[ProgressEvent], expected: list[float | None]
) -> None:
    run = run_with(tmp_path / "r", *told, PhaseEvent("training"))
    found = last_progress(run / "metrics.jsonl")
    assert found is not None
    assert found.elapsed_s == told[-1].elapsed_s
    assert [each.loss for each in found.clusters] == expected


def test_before_the_first_progress_there_is_none(tmp_path: Path) -> None:
    assert last_progress(tmp_path / "metrics.jsonl") is None
    assert last_progress(run_with(tmp_path / "r", PhaseEvent("training")) / "metrics.jsonl") is None


def test_a_stages_lines_are_those_that_it_printed_and_its_traceback(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    (tmp_path / "logs").mkdir()
    folder.ray_log.write_text("(c0.s1 pid=7) one\n(c0.s10 pid=8) another's\nRay's own\n")
    pieces = ["(c0.s1 pid=7) tw", "o (x) y\n", ""]

    def wait() -> None:
        with folder.ray_log.open("a") as file:
            file.write(piece := pieces.pop(0))
        if not piece:
            (tmp_path / "logs/c0.s1.log").write_text("Traceback\n  line\n")

    found = lines_of_stage(folder, "c0.s1", lambda: bool(pieces), wait)
    assert list(found) == ["one\n", "two (x) y\n", "Traceback\n", "  line\n"]


def test_the_stages_of_a_run_are_those_of_its_plan(tmp_path: Path, plan: Plan) -> None:
    folder = RunFolder(tmp_path)
    assert stages_of(folder) == set()
    save_plan(plan, folder.plan)
    assert "c0.s0" in stages_of(folder)
    folder.ray_log.parent.mkdir()
    folder.ray_log.write_text("(joined0.s1 pid=7) one\n(../c0.s9 pid=8) no\n")
    assert "joined0.s1" in stages_of(folder)
    assert not any("s9" in each for each in stages_of(folder))
    with pytest.raises(InvalidInput, match=r"has no log of 'c9\.s9' \(there are: c0\.s0"):
        log_of(folder, "c9.s9")
