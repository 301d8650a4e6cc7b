"""Where a stage's time went: seconds of compute by kind, and seconds of waiting by cause.

Decides nothing; the clock is whatever the driver passes as `now_s`.
"""

from __future__ import annotations

from ravnest.pipeline.instructions import (
    ApplyMerge,
    Compute,
    RunBackward,
    RunEvaluation,
    RunForward,
    RunUpdate,
    TakeSnapshot,
)

KIND_OF_COMPUTE: dict[type[Compute], str] = {
    RunForward: "forward",
    RunBackward: "backward",
    RunUpdate: "update",
    TakeSnapshot: "snapshot",
    ApplyMerge: "merge",
    RunEvaluation: "evaluation",
}
WAITS = ("start", "input", "window", "staleness", "lag", "norm", "drain")
"""For what a stage waits: to be started; for an activation or gradient; (first stage) for the window, or the
staleness bound, to let the next micro-batch in; for a merge, at the limit of the lag; for a global norm; or
it has drained."""


class Ledger:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys((*KIND_OF_COMPUTE.values(), *WAITS), 0.0)
        self._state = "start"
        self._since_s: float | None = None

    def enter(self, state: str, now_s: float) -> None:
        """From `now_s` on the stage does or awaits `state`."""
        if self._since_s is not None:
            self.seconds[self._state] += now_s - self._since_s
        self._state, self._since_s = state, now_s

    @property
    def busy_s(self) -> float:
        return sum(self.seconds[kind] for kind in KIND_OF_COMPUTE.values())

    @property
    def waited_s(self) -> float:
        return sum(self.seconds[cause] for cause in WAITS)
