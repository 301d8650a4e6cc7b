"""What a Ray is started or joined with, by a stand-in for Ray that keeps what it was told."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ravnest.driver.ray.code_shipping import JobCode
from ravnest.driver.ray.session import NICENESS, RaySession
from ravnest.errors import InvalidInput, RunFailed


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What `ray.init` was called with, and the niceness that a Ray started by it would take."""
    calls: list[dict[str, Any]] = []

    def init(**options: Any) -> None:
        calls.append({**options, "niceness": os.environ.get(NICENESS)})

    monkeypatch.setattr(os, "environ", {k: v for k, v in os.environ.items() if not k.startswith("RAY_")})
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init))  # type: ignore[arg-type]
    return calls


def test_stages_of_a_ray_started_here_have_the_priority_of_the_command(told: list[dict[str, Any]]) -> None:
    RaySession(None)
    assert told[0]["niceness"] == "0"


def test_unless_the_user_has_said_another(told: list[dict[str, Any]]) -> None:
    os.environ[NICENESS] = "7"
    RaySession(None)
    assert told[0]["niceness"] == "7"


def test_nodes_of_a_cluster_decide_for_themselves(told: list[dict[str, Any]]) -> None:
    RaySession("192.0.2.1:6379")
    assert told[0]["niceness"] is None


def test_a_file_of_the_jobs_that_cannot_be_read_is_not_blamed_on_ray(told: list[dict[str, Any]]) -> None:
    code = JobCode(((Path("/proc/self/mem"), Path("odd.bin")),))
    with pytest.raises(InvalidInput, match="/proc/self/mem: cannot be read"):
        RaySession("192.0.2.1:6379", code)
    assert told == []


def test_a_ray_that_does_not_come_up_in_time_ends_the_run_in_one_line(
    told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**options: Any) -> None:
        raise Exception("The current node timed out\nduring startup.")  # as Ray does

    monkeypatch.setattr(sys.modules["ray"], "init", init)
    with pytest.raises(RunFailed, match=r"could not start Ray on this machine: The current node timed out during"):
        RaySession(None)
