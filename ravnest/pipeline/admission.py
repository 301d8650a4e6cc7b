"""When the first stage may inject the next micro-batch, and when it has drained.

The rule, with U = `update_every`, S = `max_staleness`, W = `window`:

    inject m  iff  in flight < W  and  version >= m // U - S  and  no drain ends before m

where version counts the updates that the first stage has finished. S = 0 gives the flush of synchronous
training. A synchronous schedule bounds what is in flight itself (`StageShape.held`): W plays no part then.

Why staleness <= S at every stage. Micro-batch m is part of update g = m // U, and its gradient is applied
when the stage's version is g. *First stage*: it ran m forward at version >= g - S, so the staleness is at
most S. *A later stage*: when m was injected, the first stage had finished update g - S - 1, hence had
received the gradients of all micro-batches of the groups before g - S, and each of them had passed back
through this stage. A stage that has run the last backward of a group runs no forward before that group's
update. So when it runs m forward its version is at least g - S too. No order of messages is assumed beyond
first in, first out.

Why at most S + 1 versions are alive. At version v only micro-batches of group v or later are in flight, and
they were run forward at versions v - S … v. A merge does not add one, because it changes only weights that no
live graph holds (`Flow.untouched`).

It follows that at most (S + 1) · U micro-batches are in flight, however large the window is.
"""

from __future__ import annotations

from ravnest.pipeline.stage_shape import StageShape, require


class Admission:
    def __init__(self, shape: StageShape) -> None:
        self._update_every = shape.update_every
        self._max_staleness = shape.max_staleness
        self._is_synchronous = shape.is_synchronous
        self.window = shape.window
        self.stop_at: int | None = None
        """The micro-batch that a drain keeps out, and all after it."""

    def change_window(self, window: int) -> None:
        require(window >= 1, "a window holds at least one micro-batch")
        self.window = window

    def drain(self, next_micro_batch: int) -> None:
        if self.stop_at is None:
            self.stop_at = -(-next_micro_batch // self._update_every) * self._update_every

    def refusal(self, micro_batch: int, in_flight: int, version: int) -> str | None:
        """Why `micro_batch` may not be injected now: "drain", "window" or "staleness". None: inject it."""
        if self.stop_at is not None and micro_batch >= self.stop_at:
            return "drain"
        if version < micro_batch // self._update_every - self._max_staleness:
            return "staleness"
        if in_flight >= self.window and not self._is_synchronous:
            return "window"
        return None
