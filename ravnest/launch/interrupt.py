"""Ctrl-C during a run: the first asks for a clean stop with a checkpoint, the second ends it at once."""

import signal
from types import FrameType


class StopOnInterrupt:
    """While entered, SIGINT and SIGTERM set a wish; a second SIGINT raises KeyboardInterrupt as usual."""

    def __init__(self) -> None:
        self.wanted = False
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> "StopOnInterrupt":
        for which in (signal.SIGINT, signal.SIGTERM):
            self._before[which] = signal.signal(which, self._on_signal)
        return self

    def __exit__(self, *exc: object) -> None:
        for which, handler in self._before.items():
            signal.signal(which, handler)  # type: ignore[arg-type]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.wanted and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.wanted = True
