"""A console that a lost terminal does not end a run with.

In: what a view draws. Out: the same on standard output or standard error, until nobody can see it any more: its
terminal was closed, or nobody reads its pipe. From then on both lead to nowhere, and the run goes on to its checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
from typing import Any, TextIO, cast

from rich.console import Console

from ravnest.cli.views.tables import console

_GONE = select.POLLHUP | select.POLLERR | select.POLLNVAL


def lasting_console(*, stderr: bool, **options: Any) -> Console:
    """A console of rich, with its `options`, that raises nothing where its output is lost or its disk is full."""
    stream = sys.stderr if stderr else sys.stdout
    return console(file=cast("TextIO", _Lasting(stream)), **options)


class _Lasting:
    """A stream that forgives the operating system that it cannot be written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:  # of a full disk, too, where the output goes to a file
            self._mute()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._mute()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _mute(self) -> None:
        for stream in (self._stream, sys.__stdout__, sys.__stderr__):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # a stream without a file, or none
                _mute(cast("TextIO", stream).fileno())


def _mute(file: int) -> None:
    """Lead an open file to nowhere where nobody is at its other end."""
    looking = select.poll()
    looking.register(file, select.POLLOUT)
    if any(found & _GONE for _, found in looking.poll(0)):
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(nowhere, file)
        os.close(nowhere)
