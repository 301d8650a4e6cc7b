"""`ravnest run --detach`, with a process that is the test's own; a real one is in tests/faults/test_run.py."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from ravnest.checkpoints.run_folder import PAGE_TOKEN, RunFolder
from ravnest.cli import detach
from ravnest.driver.observe.report import PhaseEvent, as_plain


class Process:
    """A run whose start-up is these lines, and that then trains, or ends with an exit code."""

    pid = 4711

    def __init__(self, folder: Path, code: int | None) -> None:
        self.folder, self.code, self.returncode = RunFolder(folder), code, code
        self.command: list[str] = []
        self.signals: list[int] = []

    def start(self, command: list[str], *, stdout: Any, start_new_session: bool, **_: object) -> "Process":
        assert start_new_session
        self.command = command
        self.folder.output.write_text("preparing: reading the data\n")
        if self.code is None:
            line = {"kind": "phase", "at_s": 0.0, **as_plain(PhaseEvent("training"))}
            self.folder.metrics.write_text(json.dumps(line) + "\n")
        return self

    def poll(self) -> int | None:
        return self.code

    def send_signal(self, which: int) -> None:
        self.signals.append(which)


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detach.time, "sleep", lambda seconds: None)


def test_it_is_left_when_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], no_waiting: None
) -> None:
    process = Process(tmp_path / "r", None)
    monkeypatch.setattr(detach.subprocess, "Popen", process.start)
    detach.run_detached(["plan.yaml", "--encrypt"], tmp_path / "r", resume=False)
    assert process.command[2:] == ["ravnest", "run", "plan.yaml", "--encrypt", "--out", str(tmp_path / "r")]
    said = capsys.readouterr().out
    assert said.startswith("preparing: reading the data\n")
    assert "process 4711" in said
    assert f"ravnest stop {tmp_path / 'r'}" in said
    assert (tmp_path / "r/logs/output.log").stat().st_mode & 0o077 == 0  # with --page it has the page's token


@pytest.mark.parametrize(("code", "told"), [(2, 2), (-9, 137)])
def test_one_that_ends_before_is_told_with_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_waiting: None, code: int, told: int
) -> None:
    monkeypatch.setattr(detach.subprocess, "Popen", Process(tmp_path / "r", code).start)
    with pytest.raises(typer.Exit) as ended:
        detach.run_detached(["plan.yaml"], tmp_path / "r", resume=False)
    assert ended.value.exit_code == told


@pytest.mark.parametrize("begun", [False, True])
def test_of_one_that_was_refused_no_folder_is_left_unless_it_had_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], no_waiting: None, begun: bool
) -> None:
    folder = RunFolder(tmp_path / "runs/r")
    process = Process(folder.path, 2)

    def start(command: list[str], **more: Any) -> Process:
        (folder.path / PAGE_TOKEN).write_text("of its page")
        if begun:
            folder.plan.write_text("")
        return process.start(command, **more)

    monkeypatch.setattr(detach.subprocess, "Popen", start)
    with pytest.raises(typer.Exit):
        detach.run_detached(["plan.yaml"], folder.path, resume=False)
    assert "preparing: reading the data" in capsys.readouterr().out
    assert folder.output.exists() is begun
    assert (tmp_path / "runs").exists() is begun


def test_of_one_that_was_refused_in_a_folder_of_before_everything_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_waiting: None
) -> None:
    (tmp_path / "r").mkdir()
    monkeypatch.setattr(detach.subprocess, "Popen", Process(tmp_path / "r", 2).start)
    with pytest.raises(typer.Exit):
        detach.run_detached(["plan.yaml"], tmp_path / "r", resume=False)
    assert (tmp_path / "r/logs/output.log").exists()


def test_ctrl_c_during_the_start_up_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(tmp_path / "r", None)
    monkeypatch.setattr(detach.subprocess, "Popen", process.start)

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(detach.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        detach.run_detached(["plan.yaml"], tmp_path / "r", resume=False)
    assert process.signals == [detach.signal.SIGINT]
