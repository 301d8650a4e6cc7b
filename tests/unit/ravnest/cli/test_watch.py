"""`ravnest watch` and `run --page`, with a server that is the test's own; a real one is in tests/integration."""

import io
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cluster_planner import predicted_again, save_plan
from ravnest.checkpoints.run_folder import PAGE_TOKEN
from ravnest.cli import watch
from ravnest.cli.main import app
from ravnest.page import members_app, plan_app, server
from tests.unit.ravnest.results.test_run_state import PROGRESS, run_with
from tests.unit.ravnest.simulator.test_fleet import home_plan


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The arguments of each server that was made; what serves returns at once."""
    made: list[Any] = []

    class Server:
        def __init__(self, given: tuple[Any, Any], listening: socket.socket) -> None:
            made.append((*given, listening))

        def serve(self) -> None:
            raise KeyboardInterrupt

        def stop(self) -> None: ...

    monkeypatch.setattr(server, "PageServer", Server)
    monkeypatch.setattr(server, "page_app", lambda followed, access: (followed, access))
    monkeypatch.setattr(plan_app, "plan_app", lambda plan, access: (plan, access))
    monkeypatch.setattr(members_app, "members_app", lambda look, access: (look, access))
    yield made
    for _, _, listening in made:
        listening.close()


def test_the_link_has_the_token_and_ctrl_c_is_the_end(tmp_path: Path, served: list[Any]) -> None:
    run = run_with(tmp_path / "r", PROGRESS)
    told = CliRunner().invoke(app, ["watch", str(run), "--port", "0"])
    assert told.exit_code == 0, told.output
    ((followed, access, listening),) = served
    (host, port), token = listening.getsockname(), (run / PAGE_TOKEN).read_text()
    assert host == "127.0.0.1"
    assert f"http://127.0.0.1:{port}/?token={token}\n" in told.stdout
    assert (followed.path, access.token) == (run, token)
    assert "not encrypted" not in told.stderr


def test_a_plan_is_watched_until_ctrl_c(tmp_path: Path, served: list[Any]) -> None:
    plan = predicted_again(home_plan())
    save_plan(plan, tmp_path / "plan.yaml")
    told = CliRunner().invoke(app, ["watch", str(tmp_path / "plan.yaml"), "--port", "0"])
    assert told.exit_code == 0, told.output
    ((shown, access, listening),) = served
    assert shown == plan
    assert f"http://127.0.0.1:{listening.getsockname()[1]}/?token={access.token}\n" in told.stdout
    assert "not encrypted" not in told.stderr
    told = CliRunner().invoke(app, ["watch", str(tmp_path / "plan.yaml"), "--port", "0", "--host", "0.0.0.0"])
    assert "not encrypted" in told.stderr


def test_a_collaborations_folder_shows_its_people(tmp_path: Path, served: list[Any]) -> None:
    (tmp_path / "keys.json").touch()
    told = CliRunner().invoke(app, ["watch", str(tmp_path), "--port", "0"])
    assert told.exit_code == 0, told.output
    ((look, access, _),) = served
    assert look()["kind"] == "collaboration"
    assert f"/?token={access.token}\n" in told.stdout


def test_what_cannot_be_watched_is_told(tmp_path: Path, served: list[Any]) -> None:
    assert "no run is here" in str(CliRunner().invoke(app, ["watch", str(tmp_path)]).exception)
    run = run_with(tmp_path / "r", PROGRESS)
    told = CliRunner().invoke(app, ["watch", str(run), "--host", "192.0.2.1"])
    assert str(told.exception).startswith("--host: cannot listen on 192.0.2.1")
    assert served == []


def test_beside_a_run_it_is_a_process_that_hears_of_the_runs_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: list[Any]
) -> None:
    begun: list[Any] = []

    class Process:
        def __init__(self, command: list[str], **options: Any) -> None:
            self.command, self.options, self.stdin = command, options, io.BytesIO()
            # The child's copy of the socket, as a process of its own would have it.
            self.listening = socket.fromfd(options["pass_fds"][0], socket.AF_INET, socket.SOCK_STREAM)
            begun.append(self)

    monkeypatch.setattr(watch.subprocess, "Popen", Process)
    with watch.page_beside(tmp_path / "r", 0) as link:
        (process,) = begun
        port, token = process.listening.getsockname()[1], process.stdin.getvalue().decode().strip()
        assert link == f"http://127.0.0.1:{port}/?token={token}"
        assert process.options["start_new_session"]
        assert not process.stdin.closed
    assert process.stdin.closed
    assert process.command[-4:-1] == ["watch", str(tmp_path / "r"), "--with-run"]
    assert not (tmp_path / "r").exists()
    # That process, asked as it is started: the token comes by its standard input.
    descriptor = str(process.listening.detach())
    monkeypatch.setattr(watch.time, "sleep", lambda seconds: None)
    CliRunner().invoke(app, ["watch", str(tmp_path / "r"), "--with-run", descriptor], input=f"{token}\n")
    ((followed, access, listening),) = served
    assert (followed.path, access.token, listening.getsockname()[1]) == (tmp_path / "r", token, port)
