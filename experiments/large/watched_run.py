"""`ravnest run` through Ray on this machine, watched until it ends: the peak memory of each of its processes.

In: a plan, a folder and options of the command. Out: a `Process` for the driver and for each stage. Peak memory is the
kernel's (VmHWM: anonymous, file and shared pages, also such as others share), read until each process ends.
"""

import contextlib
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from cluster_planner import Plan, save_plan
from experiments.harness.report import ROOT
from ravnest.driver.ray.stage_host import PROGRAM

CLI = "from ravnest.cli.main import main; main()"
LIMIT_S = 1500.0
EVERY_S = 0.25
DRIVER = "driver"


@dataclass(frozen=True)
class Process:
    """The peak of one process, in bytes. `name`: driver, or the stage's, such as c0.s1."""

    name: str
    peak: int


def watched_run(folder: Path, plan: Plan, out: Path, *options: str) -> list[Process]:
    """Run to the end. Returns what its processes took. Raises RuntimeError where it fails, or takes over 25 minutes."""
    path = folder / "plan.yaml"
    save_plan(plan, path)
    command = [sys.executable, "-c", CLI, "run", str(path), "--out", str(out), "--json", *options]
    with (folder / "said").open("w") as said, subprocess.Popen(command, stdout=said, stderr=said, cwd=ROOT) as running:
        processes = _peaks(running)
    if running.returncode:
        raise RuntimeError(f"ravnest run ended with {running.returncode}: {(folder / 'said').read_text()[-2000:]}")
    return processes


def driver_of(processes: Sequence[Process]) -> Process:
    """The driver among a run's processes."""
    return next(each for each in processes if each.name == DRIVER)


def _peaks(running: "subprocess.Popen[bytes]") -> list[Process]:
    """The peak of the driver and of each stage, until the driver ends."""
    deadline_s = time.monotonic() + LIMIT_S
    names = {running.pid: DRIVER}
    found: dict[int, int] = {}
    while running.poll() is None:
        if time.monotonic() > deadline_s:
            running.terminate()
            raise RuntimeError(f"not done within {LIMIT_S:.0f} s")
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(running.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    words = child.cmdline()
                    if child.pid not in names and words[1:3] == ["-m", PROGRAM]:
                        names[child.pid] = words[3]
        for pid in names:
            found[pid] = max(found.get(pid, 0), _peak_bytes(pid))
        time.sleep(EVERY_S)
    return [Process(names[pid], peak) for pid, peak in found.items()]


def _peak_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return 0
