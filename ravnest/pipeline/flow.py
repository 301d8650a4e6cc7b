"""Which micro-batches a stage has received, run and sent back, and how stale each gradient was.

Micro-batches pass every stage in order, so five counters hold the whole state: each is the number of the next
micro-batch to be received, run forward, whose gradient is to be received, run backward, and added to the group's
gradient. The last two differ only where backwards are split. Design §6.
Knows nothing of rounds, norms, evaluation or the window.
"""

from __future__ import annotations

from collections import Counter, deque

from cluster_planner.inputs.model_costs import SPLIT_KEEPS
from ravnest.pipeline.stage_shape import IllegalEventError, StageShape


class Flow:
    def __init__(self, shape: StageShape, version: int) -> None:
        self._shape = shape
        self._update_every = shape.update_every
        self._max_staleness = shape.max_staleness
        self._is_synchronous = shape.is_synchronous
        self._is_first, self._is_last = shape.is_first, shape.is_last
        self.version = version
        """Updates this stage has finished."""
        self.group_end = (version + 1) * shape.update_every
        """The micro-batch after the last one of the next update."""
        first = version * shape.update_every
        self.activations = self.forwards = self.gradients = self.backwards = self.added = first
        self.staleness: Counter[int] = Counter()
        """How many gradients had which staleness, in updates."""
        self.group_staleness: list[int] = []
        """Of the gradients accumulated for the next update."""
        self._weights = 0
        """Rises with each change of the weights: updates, and merges too."""
        self._live: deque[tuple[int, int]] = deque()
        """(version, weights) with which each micro-batch in flight was run forward."""

    @property
    def in_flight(self) -> int:
        """Micro-batches run forward here (or being run) whose backward has not finished."""
        return len(self._live)

    @property
    def accumulated(self) -> int:
        """Micro-batches of the next update that have been run backward."""
        return self.backwards - self.version * self._update_every

    @property
    def pending(self) -> int:
        """Micro-batches whose input gradients are computed, and their weight gradients not yet."""
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
        return self.backwards == self.group_end

    @property
    def may_forward(self) -> bool:
        """Whether the schedule lets the next forward come now. Asynchronous: always."""
        if not self._is_synchronous:
            return True
        begun = self.forwards - self.version * self._update_every
        return begun < self._update_every and self.in_flight < self._shape.held

    @property
    def may_backward(self) -> bool:
        """Whether the schedule lets the next backward come now: with a fixed order, when no forward may."""
        return not (self._is_synchronous and self.may_forward)

    @property
    def untouched(self) -> bool:
        """Nothing is accumulated and no live graph holds the present weights."""
        newest = self._live[-1][1] if self._live else None  # they are in order
        return newest != self._weights and self.accumulated == 0

    @property
    def versions_alive(self) -> int:
        """Distinct weights held: the present ones and those that live graphs were made with."""
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
