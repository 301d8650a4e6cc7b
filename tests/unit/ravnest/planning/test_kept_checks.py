"""What is kept of a check is found again, unless anything that it depends on has changed."""

import json
import os
from pathlib import Path

import pytest

from cluster_planner import Fleet, ModelCosts, Node, NoFeasiblePlan, Unit
from ravnest.job.config import load_job
from ravnest.planning.kept_checks import CheckedModel, KeptChecks, mark_of, noting_files
from ravnest.planning.prepare_plan import prepare_plan

JOB = Path(__file__).parents[3] / "support" / "jobs" / "job.yaml"
UNIT = Unit(name="a", flops=1.5, parameter_bytes=4, saved_bytes=4, boundary_bytes=4, boundary_gradient_bytes=4)
FOUND = CheckedModel(ModelCosts((UNIT,), "print"), 0.25, warnings=("mind",), tried=("1 2",))


def test_what_was_kept_is_found_and_may_grow(tmp_path: Path) -> None:
    kept = KeptChecks(tmp_path / "checks")
    assert kept.find("m") is None
    kept.keep("m", FOUND, set())
    assert kept.find("m") == FOUND
    assert kept.find("other") is None
    kept.add_tried("m", ["units"])
    found = kept.find("m")
    assert found is not None
    assert found.tried == ("1 2", "units")
    assert found.has_tried(["1 2", "1 3 4"])
    assert not found.has_tried(["1r 2"])


def test_a_changed_file_or_an_altered_entry_is_not_found(tmp_path: Path) -> None:
    kept, data, own = KeptChecks(tmp_path / "checks"), tmp_path / "data.csv", tmp_path / "checks" / "m.json"
    data.write_text("1")
    kept.keep("m", FOUND, {str(data)})
    whole = own.read_text()
    data.write_text("2")
    assert kept.find("m") is None
    data.write_text("1")
    assert kept.find("m") == FOUND
    for altered in (
        whole[: len(whole) // 2],
        whole.replace("1.5", "1.6"),
        "[]",
        json.dumps({**json.loads(whole), "found": {}}),
    ):
        own.write_text(altered)
        assert kept.find("m") is None


def test_only_so_many_are_kept_and_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ravnest.planning.kept_checks.MOST_KEPT", 3)
    kept = KeptChecks(tmp_path)
    for number in range(5):
        kept.keep(f"m{number}", FOUND, set())
        os.utime(tmp_path / f"m{number}.json", (number, number))
    kept.keep("last", FOUND, set())
    assert len(list(tmp_path.iterdir())) == 3
    assert kept.find("m1") is None
    assert kept.find("last") == FOUND


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = KeptChecks(tmp_path / "file" / "checks")
    kept.keep("m", FOUND, set())
    assert kept.find("m") is None


def test_the_mark_is_of_the_job_the_data_and_the_extent() -> None:
    job = load_job(JOB)
    mark = mark_of(job, "data", "full")
    assert mark == mark_of(job.model_copy(update={"average_every": 7 * job.average_every}), "data", "full")
    others = {
        mark_of(job.model_copy(update={"seed": job.seed + 1}), "data", "full"),
        mark_of(job, "other", "full"),
        mark_of(job, "data", "sampled"),
    }
    assert len(others | {mark}) == 4


def test_files_that_are_read_are_noted_and_those_written_are_not(tmp_path: Path) -> None:
    (tmp_path / "read").write_text("")
    with noting_files() as noted:
        (tmp_path / "read").read_text()
        (tmp_path / "written").write_text("")
    (tmp_path / "written").read_text()
    assert str(tmp_path / "read") in noted
    assert str(tmp_path / "written") not in noted


def test_planning_again_does_not_capture_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAVNEST_CACHE", str(tmp_path))
    job, told = load_job(JOB), []
    speeds = {"flops_per_s": 1e9, "up_bytes_per_s": 1e6, "down_bytes_per_s": 1e6}
    fleet = Fleet((Node(name="a", memory_bytes=10**9, **speeds),))  # type: ignore[arg-type]
    plans = []
    for cache in (True, True, False):
        steps: list[str] = []
        warned: list[str] = []
        plans.append(prepare_plan(fleet, job, check="none", cache=cache, step=steps.append, warn=warned.append).plan)
        told.append((any(step.startswith("capturing") for step in steps), warned))
    assert [captured for captured, _ in told] == [True, False, True]
    assert told[0][1] == told[1][1] == told[2][1] != []
    assert plans[0] == plans[1] == plans[2]


def test_a_check_is_kept_where_the_fleet_is_refused_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAVNEST_CACHE", str(tmp_path))
    job, speeds = load_job(JOB), {"flops_per_s": 1e9, "up_bytes_per_s": 1e6, "down_bytes_per_s": 1e6}
    steps: list[str] = []
    small, large = (Fleet((Node(name="a", memory_bytes=size, **speeds),)) for size in (1000, 10**9))  # type: ignore[arg-type]
    with pytest.raises(NoFeasiblePlan):
        prepare_plan(small, job, check="none", step=steps.append)
    assert any(step.startswith("capturing") for step in steps)
    steps.clear()
    prepare_plan(large, job, check="none", step=steps.append)
    assert not any(step.startswith("capturing") for step in steps)
