"""Where Ray's own words go during a session: into a file, so that the user hears ravnest alone.

In: what Ray's C++ code in this process writes to the descriptors of stdout and stderr, its Python code's log, and the
lines of the workers that Ray brings here. Out: one file of plain text, without the codes for colours. This process's
own `sys.stdout` and `sys.stderr` go on to where they went before.
"""

import io
import logging
import os
import re
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from ravnest.errors import RunFailed

LARGEST_BYTES = 100 * 10**6
"""The lines of workers stop here, so that a job that prints much does not fill the disk."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class RayLog:
    """Entered, it takes Ray's words; left, it puts everything back as it was."""

    def __init__(self, path: Path | None) -> None:
        """`path` is the file to append to; None takes a file that nobody sees."""
        self.path = path
        self._leaving = ExitStack()
        self._file: io.TextIOWrapper | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> "RayLog":
        try:
            self._file = self._opened()
        except OSError as error:
            raise RunFailed(f"could not open {self.path} for Ray's log: {error.strerror or error}") from error
        with ExitStack() as leaving:
            leaving.callback(self._close)
            for number in (1, 2):
                _divert(number, self._file.fileno(), leaving)
            _divert_logger(self, leaving)
            self._leaving = leaving.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._leaving.close()

    def take_workers(self, ray_worker: Any) -> None:
        """Take the lines that Ray would print: of its workers, and about the nodes. `ray_worker` is the module of Ray
        that prints them."""
        printed = ray_worker.print_worker_logs

        def to_file(data: Mapping[str, Any], _: Any, *rest: Any, **named: Any) -> None:
            text = io.StringIO()
            printed(data, text, *rest, **named)
            self.write(text.getvalue())

        ray_worker.print_worker_logs = to_file
        self._leaving.callback(setattr, ray_worker, "print_worker_logs", printed)

    def write(self, text: str) -> None:
        """Append a text, without its colours. A disk that is full loses it: the run goes on."""
        with self._lock, suppress(OSError):
            if self._file is not None and os.fstat(self._file.fileno()).st_size < LARGEST_BYTES:
                self._file.write(_COLOURS.sub("", text))
                self._file.flush()

    def _opened(self) -> io.TextIOWrapper:
        if self.path is None:
            return tempfile.TemporaryFile("w", encoding="utf-8")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return self.path.open("a", encoding="utf-8", errors="replace")

    def _close(self) -> None:
        with self._lock, suppress(OSError):
            file, self._file = self._file, None
            if file is not None:
                file.close()


def _divert(number: int, target: int, leaving: ExitStack) -> None:
    """Let the descriptor `number` write to `target`, and Python's own streams on it to where it wrote before."""
    try:
        saved = os.dup(number)
    except OSError:
        return  # it is closed, so nothing that is written there is seen
    leaving.callback(os.close, saved)
    for raw in _raw_files(number):
        # A stream keeps its identity, since consoles and handlers of logs hold it; only its descriptor is another.
        raw.__init__(saved, "wb", closefd=False)  # type: ignore[misc]
        leaving.callback(raw.__init__, number, "wb", closefd=False)  # type: ignore[misc]
    os.dup2(target, number)
    leaving.callback(os.dup2, saved, number)


def _raw_files(number: int) -> list[io.FileIO]:
    """The files below Python's standard streams that write to this descriptor."""
    found: dict[int, io.FileIO] = {}
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        buffer = getattr(stream, "buffer", None)
        raw = getattr(buffer, "raw", buffer)
        if isinstance(raw, io.FileIO) and not raw.closed and raw.fileno() == number:
            stream.flush()  # type: ignore[union-attr]
            found[id(raw)] = raw
    return list(found.values())


class _LogHandler(logging.Handler):
    """Writes records of Ray's Python code to the file."""

    def __init__(self, log: RayLog) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.write(self.format(record) + "\n")


def _divert_logger(log: RayLog, leaving: ExitStack) -> None:
    """Send what Ray's logger gets to the file alone."""
    logger = logging.getLogger("ray")
    handlers, propagate = list(logger.handlers), logger.propagate
    handler = _LogHandler(log)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.handlers[:] = [handler]
    logger.propagate = False

    def restore() -> None:
        logger.handlers[:] = handlers
        logger.propagate = propagate

    leaving.callback(restore)
