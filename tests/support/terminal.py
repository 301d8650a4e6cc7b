"""A terminal for tests, with a shell in it: for Ctrl-Z, `fg`, and a terminal that is closed."""

import os
import select
import shlex
import subprocess
import threading
from pathlib import Path

import psutil

from tests.support.commands import RAVNEST, environment

_POLL_S = 0.1
CTRL_Z = "\x1a"


class Terminal:
    """A shell with job control in a terminal of its own, which runs `ravnest` in its foreground."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = ""
        self._terminal, inside = os.openpty()
        # Tests that are started with nohup ignore SIGHUP, and a shell would pass that on.
        shell = ["env", "--default-signal=HUP", "setsid", "--ctty", "bash", "--norc", "--noprofile", "-i"]
        self.shell = subprocess.Popen(
            shell, stdin=inside, stdout=inside, stderr=inside, cwd=folder, env=environment(), close_fds=True
        )
        os.close(inside)
        self._over = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def ravnest(self, *arguments: str) -> None:
        self.type(shlex.join([*RAVNEST, *arguments]) + "\n")

    def family(self) -> list[psutil.Process]:
        """The processes that the shell has started, and those that these have started."""
        return psutil.Process(self.shell.pid).children(recursive=True)

    def close(self) -> None:
        """Close it as a person closes a window. A second call has no effect."""
        if not self._over.is_set():
            self._over.set()
            self._reader.join()
            os.close(self._terminal)
            self.shell.wait(20.0)

    def _read(self) -> None:
        while not self._over.is_set():
            if select.select([self._terminal], [], [], _POLL_S)[0]:
                try:
                    self.output += os.read(self._terminal, 65536).decode(errors="replace")
                except OSError:  # the shell has ended
                    return
