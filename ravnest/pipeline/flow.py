"""The micro-batches of one stage: which it has received, run and sent back, and when the first stage may inject more.

Every stage handles micro-batches in order, so `Flow` describes the whole state by five counters. Each is the number of
the next micro-batch to be received, to be run forward, whose gradient is to be received, to be run backward, and to be
added to the group's gradient. The last two differ only where backwards are split. Flow also counts the staleness of
every gradient and refuses one beyond the bound (design §6).

`Admission` is the rule of the first stage, with U = `update_every`, S = `max_staleness`, W = `window`:

    inject m  iff  in flight < W  and  version >= m // U - S  and  no drain ends before m

where version counts the updates that the first stage has finished. S = 0 gives the flush of synchronous training. A
synchronous schedule bounds what is in flight by itself (`StageShape.held`), and W plays no part then.

Why staleness <= S at every stage. Micro-batch m is part of update g = m // U, and its gradient is applied when the
stage's version is g. *First stage*: it ran m forward at version >= g - S, so the staleness is at most S. *A later
stage*: when m was injected, the first stage had finished update g - S - 1. Hence it had received the gradients of all
micro-batches of the groups before g - S, and each of them had passed back through this stage. A stage that has run the
last backward of a group runs no forward before that group's update. So when it runs m forward, its version is at least
g - S too. No order of messages is assumed beyond first in, first out.

Why at most S + 1 versions are alive. At version v only micro-batches of group v or later are in flight, and they were
run forward at versions v - S … v. A merge adds none, because it changes only weights that no live graph holds
(`Flow.untouched`).

It follows that at most (S + 1) · U micro-batches are in flight, however large the window is.
"""

from __future__ import annotations

from collections import Counter, deque

from cluster_planner import SPLIT_KEEPS
from ravnest.pipeline.stage_shape import IllegalEventError, StageShape, require


class Flow:
    """Counts what has happened to the micro-batches of one stage, from the version with which it starts.

    Its methods named after events raise IllegalEventError where that event cannot be the next one.
    """

    def __init__(self, shape: StageShape, version: int) -> None:
        self._shape = shape
        self._update_every = shape.update_every
        self._max_staleness = shape.max_staleness
        self._is_synchronous = shape.is_synchronous
        self._is_first, self._is_last = shape.is_first, shape.is_last
        self.version = version
        """The number of updates that this stage has finished."""
        self.group_end = (version + 1) * shape.update_every
        """The micro-batch after the last one of the next update."""
        first = version * shape.update_every
        self.activations = self.forwards = self.gradients = self.backwards = self.added = first
        self.staleness: Counter[int] = Counter()
        """How many gradients had which staleness, in updates."""
        self.group_staleness: list[int] = []
        """The staleness of each gradient that is accumulated for the next update."""
        self._weights = 0
        """A number that rises with each change of the weights, by an update or by a merge."""
        self._live: deque[tuple[int, int]] = deque()
        """For each micro-batch in flight: (version, weights) with which it was run forward."""

    @property
    def in_flight(self) -> int:
        """The number of micro-batches whose forward has begun here and whose backward has not finished."""
        return len(self._live)

    @property
    def accumulated(self) -> int:
        """The number of micro-batches of the next update that have been run backward."""
        return self.backwards - self.version * self._update_every

    @property
    def pending(self) -> int:
        """The number of micro-batches whose input gradients are computed, but not yet their weight gradients."""
        return self.backwards - self.added

    @property
    def has_room_to_split(self) -> bool:
        """Whether the next backward may leave its weight gradients for later."""
        return self.in_flight - 1 + SPLIT_KEEPS * (self.pending + 1) <= self._shape.room

    @property
    def has_room_to_forward(self) -> bool:
        """Whether another micro-batch may come before the weight gradients that wait."""
        return not self.pending or self.in_flight + 1 + SPLIT_KEEPS * self.pending <= self._shape.room

    @property
    def update_due(self) -> bool:
        """Whether all backwards of the next update have been run."""
        return self.backwards == self.group_end

    @property
    def may_forward(self) -> bool:
        """Whether the schedule lets the next forward come now. An asynchronous one always does."""
        if not self._is_synchronous:
            return True
        begun = self.forwards - self.version * self._update_every
        return begun < self._update_every and self.in_flight < self._shape.held

    @property
    def may_backward(self) -> bool:
        """Whether the schedule lets the next backward come now. One with a fixed order does when no forward may."""
        return not (self._is_synchronous and self.may_forward)

    @property
    def untouched(self) -> bool:
        """Whether nothing is accumulated and no live graph holds the present weights."""
        newest = self._live[-1][1] if self._live else None  # they are in order
        return newest != self._weights and self.accumulated == 0

    @property
    def versions_alive(self) -> int:
        """How many distinct weights are held: the present ones and those that live graphs were made with."""
        return len({self._weights, *(weights for _, weights in self._live)})

    def activation_arrived(self, micro_batch: int) -> None:
        if micro_batch != self.activations:
            raise IllegalEventError(f"expected micro-batch {self.activations}")
        oldest = micro_batch // self._update_every - self._max_staleness
        if oldest * self._update_every > self.backwards:
            raise IllegalEventError(
                f"injected too early: the gradients of update {oldest - 1} are not sent yet, "
                f"so it would be staler than {self._max_staleness}"
            )
        self.activations += 1

    def gradient_arrived(self, micro_batch: int) -> None:
        if micro_batch != self.gradients:
            raise IllegalEventError(f"expected the gradient of micro-batch {self.gradients}")
        if micro_batch >= self.forwards:
            raise IllegalEventError("its forward has not finished here")
        self.gradients += 1

    def forward_started(self) -> None:
        self._live.append((self.version, self._weights))

    def forward_finished(self) -> None:
        self.forwards += 1
        if self._is_first:
            self.activations = self.forwards
        if self._is_last:
            self.gradients = self.forwards

    def backward_finished(self) -> None:
        self.input_gradients_finished()
        self.added += 1

    def input_gradients_finished(self) -> None:
        staleness = self.version - self._live.popleft()[0]
        if staleness > self._max_staleness:
            raise IllegalEventError(f"staleness {staleness} exceeds the bound of {self._max_staleness}")
        self.staleness[staleness] += 1
        self.group_staleness.append(staleness)
        self.backwards += 1

    def weight_gradients_finished(self) -> None:
        self.added += 1

    def update_finished(self) -> None:
        self.version += 1
        self.group_end += self._update_every
        self._weights += 1
        self.group_staleness = []

    def merge_finished(self) -> None:
        self._weights += 1

    def check(self) -> None:
        """Raise AssertionError where an invariant does not hold. For tests."""
        shape = self._shape
        assert self.added <= self.backwards <= self.gradients <= self.forwards <= self.activations
        assert 0 <= self.accumulated <= shape.update_every
        assert self.pending <= self.accumulated
        assert not self.pending or self.in_flight + SPLIT_KEEPS * self.pending <= shape.room
        assert self.in_flight <= (shape.max_staleness + 1) * shape.update_every
        assert not shape.is_synchronous or self.in_flight <= shape.held
        assert self.versions_alive <= shape.max_staleness + 1
        assert list(self._live) == sorted(self._live)
        assert all(0 <= staleness <= shape.max_staleness for staleness in self.staleness)


class Admission:
    """Decides whether the first stage may inject its next micro-batch, by the rule in this module's docstring."""

    def __init__(self, shape: StageShape) -> None:
        self._update_every = shape.update_every
        self._max_staleness = shape.max_staleness
        self._is_synchronous = shape.is_synchronous
        self.window = shape.window
        self.stop_at: int | None = None
        """After a drain: the first micro-batch that is no longer injected; None before."""
        self.waits_for_driver = False
        """Whether nothing is injected because no driver is heard."""

    def change_window(self, window: int) -> None:
        """Keep at most `window` micro-batches in flight from now on. Raises IllegalEventError for less than one."""
        require(window >= 1, "a window holds at least one micro-batch")
        self.window = window

    def drain(self, next_micro_batch: int) -> None:
        """Stop at the end of the group that `next_micro_batch`, the next to be injected, is in the middle of."""
        if self.stop_at is None:
            self.stop_at = -(-next_micro_batch // self._update_every) * self._update_every

    def refusal(self, micro_batch: int, in_flight: int, version: int) -> str | None:
        """Why `micro_batch` may not be injected now: "drain" (also while no driver is heard), "staleness" or "window";
        None where it may.

        in_flight: micro-batches between forward and backward at the first stage. version: its finished updates.
        """
        if self.waits_for_driver or (self.stop_at is not None and micro_batch >= self.stop_at):
            return "drain"
        if version < micro_batch // self._update_every - self._max_staleness:
            return "staleness"
        if in_flight >= self.window and not self._is_synchronous:
            return "window"
        return None
