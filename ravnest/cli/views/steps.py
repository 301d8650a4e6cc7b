"""Shows the slow steps of a command on standard error.

In: the names of steps as they begin, and how far the present one is, where that is known. Out: on a terminal a spinner
with what is left, or for how long the step has been going on; elsewhere a line for each step, and one now and then of
a long one, whether or not it is known how far it is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.status import Status
from rich.text import Text

from ravnest.formatting import duration

_LEAST_TOLD_S = 2.0
"""Before that nobody can say how long the rest of a step takes."""
_LINE_EVERY_S = 10.0
_LINE_EVERY_PART = 0.1
"""Of the time that a step has taken: the lines of one that takes hours become rarer."""


class Steps:
    """A context: `begin(step)` ends the step before it, which then stays on the screen with the seconds it
    took.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds, from any beginning."""
        self._console = console
        self._clock = clock
        self._said_s = 0.0
        self._status: Status | None = None
        self._current: str | None = None
        self._detail = ""
        self._says_left = False
        self._since_s = 0.0
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._speaker: threading.Thread | None = None

    def begin(self, step: str) -> None:
        self._end(done=True)
        with self._lock:
            self._current, self._since_s = step, self._clock()
            self._said_s, self._detail, self._says_left = self._since_s, "", False
        if self._console.is_terminal and not self._console.quiet:
            self._status = self._console.status(self)
            self._status.start()

    def say(self, detail: str) -> None:
        """Shows on a terminal, beside the current step, what it does."""
        self._detail, self._says_left = detail, False

    def done(self, part: float) -> None:
        """Says how far the current step is, from 0 to 1, and how long the rest takes at the same speed."""
        now_s = self._clock()
        took_s = now_s - self._since_s
        left = f", {duration(took_s * (1 - part) / part)} left" if part > 0 and took_s >= _LEAST_TOLD_S else ""
        self._detail, self._says_left = f"{part:.0%}{left}", bool(left)
        self.speak()

    def speak(self) -> None:
        """Elsewhere than on a terminal: prints a line of a step that has been going on for long, where none was printed
        for a while."""
        with self._lock:
            now_s = self._clock()
            every_s = max(_LINE_EVERY_S, _LINE_EVERY_PART * (now_s - self._since_s))
            if self._status is None and self._current is not None and now_s - self._said_s >= every_s:
                self._said_s = now_s
                ends = "" if self._says_left else " so far"
                self._console.print(Text(f"{self._current}: {self._so_far()}{ends}", "dim"))

    def __rich__(self) -> Text:
        """The words beside the spinner, which are asked for again and again."""
        return Text(f"{self._current} … {self._so_far()}", overflow="fold")

    def _so_far(self) -> str:
        took_s = self._clock() - self._since_s
        # Where nobody knows what is left, the time so far says at least that something goes on.
        since = duration(took_s) if took_s >= _LEAST_TOLD_S and not self._says_left else ""
        return ", ".join(filter(None, (self._detail, since)))

    def __enter__(self) -> Steps:
        if not self._console.is_terminal and not self._console.quiet:
            self._speaker = threading.Thread(target=self._speak_on, name="steps", daemon=True)
            self._speaker.start()
        return self

    def _speak_on(self) -> None:
        while not self._over.wait(_LINE_EVERY_S):
            self.speak()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._end(done=error is None)

    def _end(self, *, done: bool) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
        with self._lock:
            if done and self._current is not None:
                took_s = self._clock() - self._since_s
                self._console.print(f"[dim]{self._current}: {duration(took_s)}[/dim]", highlight=False)
            self._current = None
