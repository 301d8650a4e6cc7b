"""Says which slow step is under way: a spinner on a terminal, and one line per step that stays."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.status import Status


class Steps:
    """A context: `begin(step)` ends the step before it, which then stays on the screen with the seconds it
    took.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None
        self._current: str | None = None
        self._since_s = 0.0

    def begin(self, step: str) -> None:
        self._end(done=True)
        self._current, self._since_s = step, time.monotonic()
        if self._console.is_terminal and not self._console.quiet:
            self._status = self._console.status(f"{step} …")
            self._status.start()

    def say(self, detail: str) -> None:
        """How far the current step is: on a terminal, beside it."""
        if self._status is not None:
            self._status.update(f"{self._current} … {detail}")

    def __enter__(self) -> Steps:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(done=error is None)

    def _end(self, *, done: bool) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
        if done and self._current is not None:
            took_s = time.monotonic() - self._since_s
            self._console.print(f"[dim]{self._current}: {took_s:.1f} s[/dim]", highlight=False)
        self._current = None
