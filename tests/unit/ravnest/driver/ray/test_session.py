"""What a Ray is started or joined with, by a stand-in for Ray that keeps what it was told."""

import contextlib
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ravnest.driver.ray import session
from ravnest.driver.ray.code_shipping import JobCode
from ravnest.driver.ray.session import NICENESS, RaySession
from ravnest.errors import InvalidInput, RunFailed


class Folder:
    """A stand-in for the folder of a Ray, without a guard."""

    for_ray = Path("/tmp/r")
    removed = False

    def check(self) -> None:
        pass

    def watch(self) -> list[Any]:
        return []

    def remove(self) -> None:
        self.removed = True


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """What `ray.init` was called with, and the niceness that a Ray started by it would take."""
    calls: list[dict[str, Any]] = []

    def init(**options: Any) -> None:
        calls.append({**options, "niceness": os.environ.get(NICENESS), "alone": not constants.ENABLE_RAY_CLUSTER})

    constants = SimpleNamespace(ENABLE_RAY_CLUSTER=True)
    private = SimpleNamespace(worker=SimpleNamespace(print_worker_logs=print), ray_constants=constants)
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    monkeypatch.setattr(os, "environ", {**kept, "HOME": str(tmp_path)})
    ray = SimpleNamespace(init=init, shutdown=lambda: None, _private=private)
    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "ray._private", private)  # type: ignore[arg-type]
    monkeypatch.setattr(session, "RayFolder", Folder)
    return calls


def test_stages_of_a_ray_started_here_have_the_priority_of_the_command(told: list[dict[str, Any]]) -> None:
    RaySession(None).close()
    assert told[0]["niceness"] == "0"


def test_unless_the_user_has_said_another(told: list[dict[str, Any]]) -> None:
    os.environ[NICENESS] = "7"
    RaySession(None).close()
    assert told[0]["niceness"] == "7"


def test_nodes_of_a_cluster_decide_for_themselves(told: list[dict[str, Any]]) -> None:
    RaySession("192.0.2.1:6379").close()
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


def test_a_ray_started_here_is_alone_on_loopback_with_a_private_token_and_folder(
    told: list[dict[str, Any]], tmp_path: Path
) -> None:
    RaySession(None).close()
    assert (told[0]["address"], told[0]["alone"], told[0]["_temp_dir"]) == ("local", True, str(Folder.for_ray))
    assert (tmp_path / ".ray/auth_token").stat().st_mode & 0o777 == 0o600


def test_a_cluster_keeps_its_own_address_and_token(told: list[dict[str, Any]], tmp_path: Path) -> None:
    RaySession("192.0.2.1:6379").close()
    assert (told[0]["address"], told[0]["alone"], "_temp_dir" in told[0]) == ("192.0.2.1:6379", False, False)
    assert not (tmp_path / ".ray").exists()  # a token made here would not be the cluster's


def test_the_folder_goes_where_ray_does_not_start(told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder()
    monkeypatch.setattr(session, "RayFolder", lambda: folder)

    def interrupted(**options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["ray"], "init", interrupted)
    with pytest.raises(KeyboardInterrupt):
        RaySession(None)
    assert folder.removed


def test_a_ray_that_others_reach_is_ended(told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    class Exposed(Folder):
        def check(self) -> None:
            raise RunFailed("raylet on 192.0.2.7")

    folder = Exposed()
    monkeypatch.setattr(session, "RayFolder", lambda: folder)
    with pytest.raises(RunFailed, match="raylet on"):
        RaySession(None)
    assert folder.removed


def test_a_version_of_ray_without_the_call_cannot_say_what_it_drains(told: list[dict[str, Any]]) -> None:
    with contextlib.closing(RaySession(None)) as here:
        here.ray.__version__ = "9.9"
        with pytest.raises(NotImplementedError, match=r"version 9\.9 has no get_draining_nodes"):
            here.draining()
        vars(here.ray)["_private"].state = SimpleNamespace(state=SimpleNamespace(get_draining_nodes=lambda: {"aa": 0}))
        entry = {"NodeID": "aa", "NodeManagerAddress": "192.0.2.1", "Alive": True, "Resources": {"CPU": 2.0}}
        here.ray.nodes = lambda: [entry, {**entry, "NodeID": "bb"}]
        assert [node.node_id for node in here.draining()] == ["aa"]
