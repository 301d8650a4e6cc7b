import subprocess
from pathlib import Path

import pytest

from ravnest.driver import node_watch
from ravnest.driver.node_watch import NodeWatch


class Process:
    """Stands for a process, which ends when it is told to, or only when it is killed."""

    def __init__(self, words: list[str]) -> None:
        self.words, self.told = words, list[str]()
        self.ended: int | None = None

    def poll(self) -> int | None:
        return self.ended

    def terminate(self) -> None:
        self.told.append("terminate")

    def kill(self) -> None:
        self.told.append("kill")

    def wait(self, timeout: float | None = None) -> int:
        if timeout is not None and "stubborn" in self.words[4]:
            raise subprocess.TimeoutExpired(self.words, timeout)
        return 0


@pytest.fixture(autouse=True)
def processes(monkeypatch: pytest.MonkeyPatch) -> list[Process]:
    made = []

    def start(words: list[str], **_: object) -> Process:
        made.append(Process(words))
        return made[-1]

    monkeypatch.setattr(node_watch.subprocess, "Popen", start)
    return made


def test_a_run_on_this_machine_has_none(tmp_path: Path, processes: list[Process]) -> None:
    with NodeWatch(None, tmp_path / "ray.log") as watch:
        watch.start(tmp_path)
    assert processes == []


def test_it_is_started_once_and_ends_with_the_block(tmp_path: Path, processes: list[Process]) -> None:
    with NodeWatch("192.0.2.1:6379", tmp_path / "logs" / "ray.log") as watch:
        watch.start(tmp_path / "run")
        watch.start(tmp_path / "run")
        (process,) = processes
        assert process.words[1:] == ["-m", "ravnest", "join", str(tmp_path / "run"), "--address", "192.0.2.1:6379"]
        assert process.told == []
    assert process.told == ["terminate"]


def test_one_that_has_ended_is_started_again_when_the_run_begins_again(
    tmp_path: Path, processes: list[Process]
) -> None:
    with NodeWatch("192.0.2.1:6379", tmp_path / "logs" / "ray.log") as watch:
        watch.start(tmp_path)
        processes[0].ended = 1
        watch.start(tmp_path)
        assert len(processes) == 2
    assert processes[1].told == ["terminate"]


def test_one_that_does_not_end_is_killed(tmp_path: Path, processes: list[Process]) -> None:
    with NodeWatch("192.0.2.1:6379", tmp_path / "ray.log") as watch:
        watch.start(tmp_path / "stubborn")
    assert processes[0].told == ["terminate", "kill"]
