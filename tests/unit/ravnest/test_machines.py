"""The door to machines: what profile and doctor take and refuse. tests/integration/test_cli_machines.py runs both."""

from pathlib import Path
from typing import Any

import pytest

import ravnest
from cluster_planner import Fleet, Node, Plan, save_plan
from ravnest.checkpoints.run_folder import RunFolder
from ravnest.checkpoints.run_lock import RunLock
from ravnest.driver.node_requests import NodeRequest, take_requests
from ravnest.machines import leave_run
from ravnest.recovery import with_nodes
from tests.support.local import JOB_FILE

NODE = Node(name="a", flops_per_s=1e9, memory_bytes=10**9, up_bytes_per_s=1e6, down_bytes_per_s=1e6)


def refused(file: Path) -> str:
    with pytest.raises(ravnest.InvalidInput) as raised:
        ravnest.doctor(file)
    return str(raised.value)


def test_doctor_refuses_a_file_that_is_neither_a_plan_nor_a_fleet(tmp_path: Path) -> None:
    assert "job.yaml" in refused(JOB_FILE)
    assert str(tmp_path / "nodes.yaml") in refused(tmp_path / "nodes.yaml")


@pytest.mark.parametrize(
    ("options", "key"), [({"peers": 1}, "peers"), ({"seconds": 0.4}, "seconds"), ({"seconds": float("nan")}, "seconds")]
)
def test_profile_refuses_impossible_arguments_before_anything_is_read(
    tmp_path: Path, options: dict[str, Any], key: str
) -> None:
    with pytest.raises(ravnest.InvalidInput) as raised:
        ravnest.profile(tmp_path / "job.yaml", **options)
    assert raised.value.key == key


def test_profile_reads_the_job_before_it_looks_for_machines(tmp_path: Path) -> None:
    with pytest.raises(ravnest.InvalidInput) as raised:
        ravnest.profile(tmp_path / "job.yaml", address="192.0.2.1:1")
    assert raised.value.path == str(tmp_path / "job.yaml")


def test_doctor_examines_the_fleet_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ravnest.profiling import doctor

    ravnest.save_fleet(Fleet((NODE,)), tmp_path / "nodes.yaml")
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(doctor, "examine", lambda *given: asked.append(given))
    told: list[str] = []
    ravnest.doctor(tmp_path / "nodes.yaml", warn=told.append, progress=told.append)
    ((plan, fleet, path, address, progress),) = asked
    assert (plan, fleet, path, address) == (None, Fleet((NODE,)), tmp_path / "nodes.yaml", None)
    assert progress == told.append


def test_a_machine_that_has_come_to_a_run_may_leave_it_too(tmp_path: Path, plan: Plan) -> None:
    """The plan in the run's folder does not have it; what the driver writes down has."""
    run, lock = RunFolder(tmp_path), RunLock(tmp_path)
    save_plan(plan, run.plan)
    with pytest.raises(ravnest.InvalidInput, match="'a'"):
        leave_run(tmp_path, "a")
    save_plan(with_nodes(plan, Fleet((NODE,)), ["a"]), run.driver.with_suffix(".plan.yaml"))
    leave_run(tmp_path, "a")
    lock.release()
    assert take_requests(tmp_path) == [NodeRequest("leave", "a")]
