"""A run as its user has it: a driver in a folder on a small disk, started again where it was killed, and its stages.

In: a folder with a plan, machines. Out: what the run has written down so far, each line with the moment at which it was
seen.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from experiments.churn.faulted.machines import Machines
from experiments.harness.report import ROOT
from ravnest.driver.ray.stage_host import PROGRAM
from ravnest.driver.run_store import addresses_in, load_state
from ravnest.errors import RavnestError

Record = dict[str, Any]
HUNG_S = 240.0
"""A run that has not gone on for so long after a fault counts as hung."""
READY = "ready on "
"""With this begins the name of a process that was started where no stage is."""
DISK_BYTES = 24 << 20
_LOOK_S = 0.05
_RUN = [sys.executable, "-m", "experiments.churn.faulted.in_namespaces", "run", "plan.yaml", "--out", "disk/r"]


class Hung(Exception):
    """The run does not go on."""


class Ended(Exception):
    """The run has ended."""


class FaultedRun:
    """A run in a folder, started again where its driver was killed."""

    def __init__(self, folder: Path, machines: Machines) -> None:
        self.folder = folder
        self.machines = machines
        self._log = folder / "output.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._read = 0
        self.records: list[tuple[float, Record]] = []
        """All lines of metrics.jsonl so far, each with the moment at which it was seen."""

    def start(self, *, resume: bool = False) -> None:
        """Start the driver."""
        site = self.machines.site
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "1000", "PYTHONUNBUFFERED": "1"}
        environment["FAULTS_SITE"] = str(site.number)
        more = ["--resume"] if resume else []
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*_RUN, "--address", f"{site.driver}:6379", *more],
                cwd=self.folder,
                env=environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    @property
    def code(self) -> int | None:
        """The exit code of the driver; None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def output(self) -> str:
        """All that drivers have printed."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def kill(self) -> None:
        """Kill the driver."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stages(self) -> dict[str, psutil.Process]:
        """The stages' processes of this run by name, also of those whose driver is gone.

        Which they are the driver writes down. A stage that it has not written down goes by the name with which its
        process was started, as that of a ready process does, which waits beside a stage or on a node where none is.
        """
        known: dict[str, int] = {}
        with suppress(RavnestError):
            if (state := load_state(self.folder / "disk/r/driver.json")) is not None:
                known = {name: at.pid for name, at in addresses_in(state).items()}
        every = self._processes()
        found = {name: every[pid][1] for name, pid in known.items() if pid in every}
        taken = {process.pid for process in found.values()}
        for pid, (name, process) in every.items():
            if pid not in taken and not name.startswith(READY):
                found.setdefault(name, process)
        return found

    def _processes(self) -> dict[int, tuple[str, psutil.Process]]:
        """By id: the name with which a process for a stage of this run was started, and the process."""
        found = {}
        for process in psutil.process_iter(["cmdline", "cwd"]):
            words = process.info["cmdline"] or []
            if words[1:3] == ["-m", PROGRAM] and process.info["cwd"] == str(self.folder):
                found[process.pid] = words[3], process
        return found

    def look(self) -> None:
        """Read what was written to metrics.jsonl since the last look."""
        with suppress(OSError), (self.folder / "disk/r/metrics.jsonl").open("rb") as file:
            file.seek(self._read)
            text = file.read()
            whole = text.rfind(b"\n") + 1
            self._read += whole
            now_s = time.monotonic()
            for line in text[:whole].splitlines():
                with suppress(ValueError):
                    self.records.append((now_s, json.loads(line)))

    def until(self, what: Callable[[], bool], deadline_s: float = HUNG_S) -> None:
        """Wait. Raises Hung past the deadline, and Ended where the run ends before."""
        until_s = time.monotonic() + deadline_s
        while True:
            self.look()
            if what():
                return
            if self.code is not None:
                raise Ended
            if time.monotonic() > until_s:
                raise Hung
            time.sleep(_LOOK_S)

    def since(self, moment_s: float, *kinds: str) -> list[Record]:
        """The records of these kinds that were seen since then."""
        return [record for at_s, record in self.records if at_s >= moment_s and record["kind"] in kinds]

    def last_update_s(self, cluster: str, since_s: float) -> list[float]:
        """The moments of the cluster's updates since then."""
        return [
            at_s
            for at_s, one in self.records
            if at_s >= since_s and one["kind"] == "update" and one["cluster"] == cluster
        ]

    def end(self) -> None:
        """Kill whatever is left of the run."""
        self.kill()
        for _, process in self._processes().values():
            with suppress(psutil.Error):
                os.killpg(os.getpgid(process.pid), signal.SIGKILL)


@contextmanager
def small_disk(place: Path) -> Iterator[None]:
    """A small file system at this place."""
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "rvfaults", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
        shutil.rmtree(place, ignore_errors=True)
