"""What a stage owes to rounds at an update boundary: snapshots to take and merges to apply, within the lag.

- The last stage stamps an opened round on the gradient that ends a group, in round order, one round an
  update; every stage takes that round's snapshot right after that update, so a round holds the same updates
  of all stages.
- Round r may be contributed to only when round r - `max_lag` is merged. Until then the stage waits at the
  boundary: it trains no further, but merges. So lag = contributed - merged never exceeds `max_lag`. Design
  §7.
- Merges go in round order, only when the weights are untouched: nothing accumulated, and no live graph made
  with them. That is so right after each update, hence a merge waits for one update at most.

No deadlock: the stages behind a waiting stage need nothing from it to reach the same boundary (it has sent
the gradients of all groups up to there), so each round up to r - `max_lag` is contributed to by all, and
commits.
"""

from __future__ import annotations

from collections import deque

from ravnest.pipeline.instructions import ApplyMerge, TakeSnapshot
from ravnest.pipeline.stage_shape import StageShape, require


class Boundary:
    def __init__(self, shape: StageShape, number: int) -> None:
        self._max_lag = shape.max_lag
        self.contributed = number
        self.merged = number
        self._arrived = number
        self._opened = number
        self._stamped = number
        self._due: deque[tuple[int, int]] = deque()
        """(update, number): the snapshot that is to follow the update."""
        self._finish: tuple[int, int] | None = None
        """(last round, updates): what is left to do after a drain."""
        self.is_quiet = True
        """There is no snapshot to take and no merge to apply, now or later, as far as is known here."""
        self._finish_reported = -1

    @property
    def lag(self) -> int:
        return self.contributed - self.merged

    @property
    def last_update(self) -> int | None:
        """After a drain: the number of updates beyond which there is none."""
        return None if self._finish is None else self._finish[1]

    def round_opened(self, number: int) -> None:
        require(self._finish is None, "the rounds to finish were already named")
        require(number == self._opened + 1, f"expected round {self._opened + 1}")
        self._opened = number

    def stamp_open_round(self, update: int) -> None:
        """The last stage: `update`'s group is complete, so let it close the oldest round still open, if
        any."""
        if self._stamped < self._opened:
            self.stamp(self._stamped + 1, update)

    def stamp_of(self, update: int) -> int | None:
        """The round whose snapshot is due after `update`."""
        return next((number for of, number in self._due if of == update), None)

    def stamp(self, number: int, update: int) -> None:
        """A snapshot for round `number` is due after `update`."""
        require(number == self._stamped + 1, f"expected the stamp of round {self._stamped + 1}")
        require(self._finish is None or number <= self._finish[0], "no round beyond the last to finish")
        self._stamped = number
        self._due.append((update, number))
        self.is_quiet = False

    def finish(self, up_to: int, updates: int, version: int) -> None:
        least = max(self._stamped, self._opened) if self._finish is None else self._finish[0]
        require(up_to >= least, f"round {least} is open")
        require(self._finish is None or updates == self._finish[1], "the number of updates has changed")
        require(updates >= version, f"this stage is at version {version} already")
        self._finish = (up_to, updates)
        self.is_quiet = False

    def merge_arrived(self, number: int) -> None:
        require(number == self._arrived + 1, f"expected round {self._arrived + 1}")
        require(number <= self.contributed, "this stage has not contributed to it")
        self._arrived = number
        self.is_quiet = False

    def next_step(self, version: int, untouched: bool) -> TakeSnapshot | ApplyMerge | None:
        number = self._snapshot_due(version)
        if number is not None and number - self._max_lag <= self.merged:
            return TakeSnapshot(number)
        if self.merged < self._arrived and untouched:
            return ApplyMerge(self.merged + 1)
        return None

    def holds(self, version: int) -> bool:
        """Whether training waits here for a snapshot that the lag does not permit yet."""
        return self._snapshot_due(version) is not None

    def snapshot_finished(self, number: int) -> None:
        self.contributed = number
        if self._due and self._due[0][1] == number:
            self._due.popleft()
        self._look()

    def merge_finished(self, number: int) -> None:
        self.merged = number
        self._look()

    def _look(self) -> None:
        self.is_quiet = not self._due and self.merged == self._arrived and self._finish is None

    def newly_finished(self, version: int) -> int | None:
        """When all rounds to finish are merged: the last of them, each time that it is a new one."""
        if (self.merged, version) != self._finish or self.merged == self._finish_reported:
            return None
        self._finish_reported = self.merged
        return self.merged

    def _snapshot_due(self, version: int) -> int | None:
        if self._due and self._due[0][0] < version:
            return self._due[0][1]
        if self._finish is not None and self._finish[1] == version and self.contributed < self._finish[0]:
            return self.contributed + 1
        return None

    def check(self, version: int) -> None:
        assert self.merged <= self._arrived <= self.contributed
        assert 0 <= self.lag <= self._max_lag
        assert all(update >= version - 1 for update, _ in self._due), "a snapshot was passed over"
        assert [number for _, number in self._due] == sorted(number for _, number in self._due)
