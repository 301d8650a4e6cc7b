"""The program that clears up after a Ray: it ends what is left of it and removes its folder, also after a killed run.

It runs in a process of its own beside the one that starts Ray, which gives it a pipe as stdin. In: the folder as its
argument, and on each line of stdin the id of a process of that Ray. The end of stdin means that the starter has left,
or was killed. Some processes of Ray would outlive a killed starter by a minute, and its folder for good.
"""

import shutil
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

END_S = 5.0
"""How long the processes have to end by themselves."""
_POLL_S = 0.1


def clear_up(folder: Path, lines: Iterable[str], end_s: float = END_S) -> None:
    """Read process ids until the lines end, then wait up to `end_s` for these processes, kill those that are left, and
    remove the folder."""
    processes: dict[int, psutil.Process] = {}
    for line in lines:
        with suppress(psutil.NoSuchProcess, ValueError):
            process = psutil.Process(int(line))  # knows the process from a later one with the same id
            processes[process.pid] = process
    deadline_s = time.monotonic() + end_s
    while (alive := [each for each in processes.values() if _is_alive(each)]) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    for process in alive:
        with suppress(psutil.Error):
            process.kill()
    shutil.rmtree(folder, ignore_errors=True)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


if __name__ == "__main__":
    clear_up(Path(sys.argv[1]), sys.stdin)
