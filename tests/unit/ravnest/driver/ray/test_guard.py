"""What the guard does when the starter of a Ray has gone, with stand-ins for processes."""

from pathlib import Path

import psutil
import pytest

from ravnest.driver.ray import guard


class Process:
    """A process: `alive` says whether it runs on, and `killed` whether it was killed."""

    def __init__(self, pid: int, *, alive: bool, status: str = psutil.STATUS_RUNNING) -> None:
        self.pid, self.alive, self.killed, self._status = pid, alive, False, status

    def is_running(self) -> bool:
        return self.alive

    def status(self) -> str:
        return self._status

    def kill(self) -> None:
        self.killed = True


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> dict[int, Process]:
    found = {
        1: Process(1, alive=True),
        2: Process(2, alive=False),
        3: Process(3, alive=True, status=psutil.STATUS_ZOMBIE),
        4: Process(4, alive=True),
    }

    def lookup(pid: int) -> Process:
        if pid not in found:
            raise psutil.NoSuchProcess(pid)
        return found[pid]

    monkeypatch.setattr(psutil, "Process", lookup)
    return found


def test_it_kills_what_it_was_told_of_and_still_runs_and_removes_the_folder(
    processes: dict[int, Process], tmp_path: Path
) -> None:
    folder = tmp_path / "ray"
    (folder / "r").mkdir(parents=True)
    (folder / "r" / "log").write_text("x")
    guard.clear_up(folder, ["1\n", "2\n", "3\n", "5\n", "no number\n"], end_s=0.0)
    assert [pid for pid, process in processes.items() if process.killed] == [1]
    assert not folder.exists()


def test_a_folder_that_is_gone_is_no_error(processes: dict[int, Process], tmp_path: Path) -> None:
    guard.clear_up(tmp_path / "gone", ["4\n"], end_s=0.0)
    assert processes[4].killed
