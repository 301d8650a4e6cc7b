"""Ctrl-C and SIGTERM. Once `gracefully` is set, the first asks for a clean stop with a checkpoint, and a second
Ctrl-C ends the run at once; before, when there is nothing to save, the first does.
"""

import signal
from types import FrameType


class StopOnInterrupt:
    """While entered, SIGINT and SIGTERM are handled here."""

    def __init__(self) -> None:
        self.gracefully = False
        self.wanted = False
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> "StopOnInterrupt":
        self._before = {which: signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM)}
        self.arm()
        return self

    def arm(self) -> None:
        """Take both signals, whoever else has taken them meanwhile."""
        for which in self._before:
            signal.signal(which, self._on_signal)

    def __exit__(self, *exc: object) -> None:
        for which, handler in self._before.items():
            signal.signal(which, handler)  # type: ignore[arg-type]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self.gracefully or (self.wanted and number == signal.SIGINT):
            raise KeyboardInterrupt
        self.wanted = True
