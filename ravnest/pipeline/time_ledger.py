"""Where a stage's time went: seconds of compute by kind, of handing computations over, and of waiting by cause.

The stage machine enters each state with the time that its driver passes. The same transitions make the spans of a
timeline, for whoever sets `on_span`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from ravnest.pipeline.instructions import (
    ApplyMerge,
    Compute,
    RunBackward,
    RunEvaluation,
    RunForward,
    RunInputGradients,
    RunUpdate,
    RunWeightGradients,
    TakeSnapshot,
)

KIND_OF_COMPUTE: dict[type[Compute], str] = {
    RunForward: "forward",
    RunBackward: "backward",
    RunInputGradients: "backward",
    RunWeightGradients: "weights",
    RunUpdate: "update",
    TakeSnapshot: "snapshot",
    ApplyMerge: "merge",
    RunEvaluation: "evaluation",
}
HANDOFF = "handoff"
"""Time between the threads: a computation was instructed and has not begun, or has ended and was not heard of."""
WAITS = ("start", "input", "window", "staleness", "lag", "norm", "drain")
"""What a stage waits for: to be started; an activation or a gradient; at the first stage, the window or the staleness
bound to let the next micro-batch in; a merge, at the limit of the lag; a global norm; or it has drained."""
STATES = (*dict.fromkeys(KIND_OF_COMPUTE.values()), HANDOFF, *WAITS)

OnSpan = Callable[[str, int | None, float, float], None]
"""Takes what a stage did or awaited, the number of its micro-batch, update, round or batch, and begin and end."""


class Ledger:
    """The seconds that one stage has spent in each of STATES."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(STATES, 0.0)
        self.on_span: OnSpan | None = None
        """Is called with each span of compute or waiting once it has ended. Handing over is the gap between spans."""
        self._state = "start"
        self._running: Compute | None = None
        self._since_s: float | None = None
        self._began_s = 0.0

    @property
    def state(self) -> str:
        """What the stage does or awaits now."""
        return self._state

    def enter(self, state: str, now_s: float, running: Compute | None = None) -> None:
        """Take note that the stage does or awaits `state` from `now_s` on, and computes `running`, if anything."""
        since_s, before = self._since_s, self._state
        if since_s is None:
            since_s = self._since_s = self._began_s = now_s
        same = state == before and running is self._running
        if same and running is not None:
            return  # a computation is accounted for when it has ended: `computed` may know better
        if now_s > since_s:  # as _account does
            self.seconds[before] += now_s - since_s
            self._since_s = now_s
        if same:
            return
        if self.on_span is not None and before != HANDOFF:
            self._tell(before, now_s)
        self._state, self._running, self._began_s = state, running, now_s

    def computed(self, began_s: float, ended_s: float) -> None:
        """The running computation really took from `began_s` to `ended_s`; the rest, until the next state is entered,
        was handing over. Without this call, as under a virtual clock, all of it counts as compute."""
        if self._since_s is None or self._running is None:
            return
        kind = self._state
        self._state = HANDOFF
        began_s = max(began_s, self._since_s)
        ended_s = max(ended_s, began_s)
        self._account(began_s)
        self.seconds[kind] += ended_s - began_s
        self._since_s = self._began_s = ended_s
        if self.on_span is not None:
            self.on_span(kind, _number(self._running), began_s, ended_s)

    @property
    def busy_s(self) -> float:
        """Seconds of compute so far."""
        return sum(self.seconds[kind] for kind in set(KIND_OF_COMPUTE.values()))

    @property
    def waited_s(self) -> float:
        """Seconds of waiting so far, for whatever cause."""
        return sum(self.seconds[cause] for cause in WAITS)

    def _account(self, until_s: float) -> None:
        assert self._since_s is not None
        if until_s > self._since_s:  # what ended in another thread may have been stamped after the caller's own reading
            self.seconds[self._state] += until_s - self._since_s
            self._since_s = until_s

    def _tell(self, state: str, now_s: float) -> None:
        if self.on_span is not None and now_s > self._began_s:
            self.on_span(state, None if self._running is None else _number(self._running), self._began_s, now_s)


def _number(compute: Compute) -> int:
    match compute:
        case RunForward(m) | RunBackward(m) | RunInputGradients(m) | RunWeightGradients(m):
            return m
        case RunUpdate(update):
            return update
        case TakeSnapshot(number) | ApplyMerge(number):
            return number
        case RunEvaluation(_, batch):
            return batch
        case _:
            assert_never(compute)
