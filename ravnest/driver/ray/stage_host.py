"""The actor of one stage: it starts the stage's process, and tells what the process says and how it ended.

A worker of Ray dies with its Ray: when the driver is killed, when the head is lost, when Ray takes memory back. What a
stage holds must not. So a stage is a process of its own, in a session of its own, and the actor only starts it, hears
it and ends it. A shell lies between the two, because Ray kills the children of its workers with them, but not theirs.
The stage itself decides what becomes of it without its actor (ravnest/stage/own_process.py).

Beside the stage the actor may keep a ready process: one that has loaded all libraries and waits for what it is to be.
Where the stage's process ends, that one takes its place in a fraction of the time.

In: the stage's name, and bytes for its process. Out: bytes of the process. Ray's authenticated channel carries both,
and the actor opens neither. Ray's workers import this module, which needs neither torch nor the rest of ravnest: an
actor takes no more memory than Ray itself does.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Literal

from ravnest.stage.line import GET_READY, Line

PROGRAM = "ravnest.stage.own_process"
"""The module that a stage's process runs."""

Reply = tuple[Literal["said"], bytes] | tuple[Literal["died"], str]
"""What the process has answered, or how it ended, in words."""

_LAUNCH = '"$@"; exit $?'
_REAP_S = 5.0


class _OwnProcess:
    """A process for a stage, and the line to it."""

    def __init__(self, name: str) -> None:
        here, theirs = socket.socketpair()
        places = [entry or str(Path.cwd()) for entry in sys.path]
        command = ["/bin/sh", "-c", _LAUNCH, "stage", sys.executable, "-m", PROGRAM, name, str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
                start_new_session=True,
            )
        self._line = Line(here)
        self._reaper = threading.Thread(target=self._reap, args=(here,), name="reaper", daemon=True)
        self._reaper.start()

    def asked(self, request: bytes) -> Reply:
        """Send it a request, and wait for its answer or its end."""
        try:
            self._line.send(request)
            return "said", self._line.receive()
        except (EOFError, OSError):
            return "died", self._how()

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._process.returncode is not None

    def end(self) -> None:
        """End it at once, whatever it does, with all that it has started."""
        if not self.ended:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _reap(self, line: socket.socket) -> None:
        """Wait for the end of the process. Then end what it has started, and let the actor hear of the end.

        What the process has said before is still read. A child that it has forked would hold the other end of the line
        for as long as it lived.

        Where the shell itself was killed the stage may live, and goes on. The shell is not reaped then: so its id stays
        that of the stage's group, which `end` ends.
        """
        process = self._process
        end = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # its id stays its own until it is reaped
        if end is None or end.si_code != os.CLD_EXITED:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            line.shutdown(socket.SHUT_RD)
        process.wait()

    def _how(self) -> str:
        self._reaper.join(_REAP_S)
        code = self._process.returncode
        return "its process hears its actor no more" if code is None else ended_how(code)


class StageActor:
    """One stage of one cluster, in a process of its own. `end` may be called while the other methods wait."""

    def __init__(self, name: str, order: bytes) -> None:
        """`order`: what the process is to be, for own_process.py."""
        self._name = name
        self._order = order
        self._process: _OwnProcess | None = None
        self._ready: _OwnProcess | None = None
        self._lock = threading.Lock()
        """Of the two processes and `_over`, which are set together."""
        self._over = threading.Event()

    def __repr__(self) -> str:
        """The stage's name: Ray puts it before each line that the process prints."""
        return self._name

    def prepare(self) -> Reply:
        """Start the process. It answers with its StageAddress once it listens, or with the error that kept it."""
        with self._lock:
            self._process = _OwnProcess(self._name)
        return self._process.asked(self._order)

    def run(self, peers: bytes) -> Reply:
        """Let the stage enter its loop. `peers` are their addresses. It answers with its StageOutcome at its end."""
        assert self._process is not None
        return self._process.asked(peers)

    def make_ready(self, after_s: float) -> Reply:
        """Start a ready process, in so many seconds. It answers once it has loaded what a stage like this one needs."""
        if self._over.wait(after_s):
            return "died", "its stage is not needed any more"
        with self._lock:
            if self._over.is_set():
                return "died", "its stage is not needed any more"
            self._ready = ready = _OwnProcess(self._name)
        return ready.asked(GET_READY + self._order)

    def rest(self) -> None:
        """The stage is over: end its process at once, whatever it does. The ready one waits on.

        Where none waits it has become a stage since: calls of Ray's may overtake each other here.
        """
        with self._lock:
            if self._process is not None and self._ready is not None:
                self._process.end()

    def again(self, name: str, order: bytes) -> Reply:
        """Be this stage from now on: let the ready process take its place, or a new one where that has ended.

        That the ready one has ended is known for sure only when it is asked.
        """
        self._name, self._order = name, order
        with self._lock:
            if self._process is not None:
                self._process.end()
            ready, self._ready = self._ready, None
            self._process = process = ready or _OwnProcess(self._name)
        reply = process.asked(order)
        if ready is None or reply[0] == "said":
            return reply
        with self._lock:
            if self._over.is_set():
                return reply
            ready.end()
            self._process = process = _OwnProcess(self._name)
        return process.asked(order)

    def end(self) -> None:
        """End the processes at once, whatever they do, with all that they have started."""
        with self._lock:
            self._over.set()
            for each in (self._process, self._ready):
                if each is not None:
                    each.end()


def ended_how(code: int) -> str:
    """How a process ended, in words, by the exit code that a shell gives it."""
    number = code - 128 if code > 128 else -code if code < 0 else 0
    if number == signal.SIGKILL:
        return "its process was killed (SIGKILL), as the system does where a machine runs out of memory"
    if number:
        with contextlib.suppress(ValueError):
            return f"its process was ended by {signal.Signals(number).name}"
    return f"its process ended with exit code {code}"
