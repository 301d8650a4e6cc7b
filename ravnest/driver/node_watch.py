"""The process that lets machines join a run which appear in its Ray cluster (ravnest/profiling/appearing.py).

In: the address of Ray, and the run's folder. Out: a process beside the run, with a connection to Ray of its own: to
measure a machine takes seconds, for which the run's own would wait. It ends with the run, however that ends.
"""

import contextlib
import subprocess
import sys
from pathlib import Path
from types import TracebackType

END_S = 10.0
"""How long it may take to leave Ray before it is killed."""


class NodeWatch:
    """A context manager, which ends the process where it was started."""

    def __init__(self, address: str | None, log: Path) -> None:
        """`address`: None where Ray was started for this run alone, on this machine: nobody joins it. What the process
        says is appended to `log`."""
        self._address = address
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, run: Path) -> None:
        """Start it for the run in this folder, unless it runs. A log that cannot be written has no effect."""
        if self._address is None or (self._process is not None and self._process.poll() is None):
            return
        words = [sys.executable, "-m", "ravnest", "join", str(run), "--address", self._address]
        with contextlib.suppress(OSError):
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )

    def __enter__(self) -> "NodeWatch":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
