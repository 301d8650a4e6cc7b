"""What a stage does at an update boundary: the norm that its update is clipped by, then snapshots and merges.

Gradient norms. The squared norm of update g is a sum over stages. Each stage adds its own part to the partial sum of
the later stages, which came with the gradient of the group's last micro-batch. The first stage completes the sum and
sends it forward again.

- In synchronous training (`max_staleness` 0), or with one stage, update g waits for the norm of g, which is exact.
- In asynchronous training it takes the last norm known here, that of a past update, and clips by none before the first
  is known. (The first stage knows that of g itself.) design §6.

Rounds. A stage owes them snapshots to take and merges to apply, within the lag (design §7).

- The last stage stamps an opened round on the gradient that ends a group, in round order, one round an update. Every
  stage takes that round's snapshot right after that update, so a round holds the same updates of all stages.
- A stage may contribute to round r only when round r - `max_lag` is merged. Until then it waits at the boundary: it
  trains no further, but merges. So lag = contributed - merged never exceeds `max_lag`.
- Merges go in round order, and only while the weights are untouched: nothing is accumulated, and no live graph was made
  with them. That is so right after each update, hence a merge waits for one update at most.

There is no deadlock: the stages behind a waiting stage need nothing from it to reach the same boundary, because it has
sent the gradients of all groups up to there. So all stages contribute to each round up to r - `max_lag`, and it
commits.
"""

from __future__ import annotations

from collections import deque

from ravnest.pipeline.instructions import ApplyMerge, TakeSnapshot
from ravnest.pipeline.stage_shape import IllegalEventError, StageShape, require


class GradientNorms:
    """Knows which global gradient norm the next update of one stage is clipped by."""

    def __init__(self, shape: StageShape, version: int) -> None:
        self._shape = shape
        self._clip = shape.clip
        self._waits = shape.clip and shape.max_staleness == 0
        self._of_later_stages: dict[int, float] = {}
        self._known_update = version - 1
        self._known_norm_sq: float | None = None

    def gradient_arrived(self, micro_batch: int, norm_sq: float | None) -> None:
        """Take the partial sum of all later stages, in `norm_sq`. Raises IllegalEventError where it does not belong."""
        self._require_on_group_end(micro_batch, norm_sq)
        if norm_sq is not None:
            self._of_later_stages[micro_batch // self._shape.update_every] = norm_sq

    def backward_finished(self, micro_batch: int, norm_sq: float | None) -> float | None:
        """Take this stage's own part. Returns the sum of it and of the later stages' parts; None for no part."""
        self._require_on_group_end(micro_batch, norm_sq)
        if norm_sq is None:
            return None
        update = micro_batch // self._shape.update_every
        total = norm_sq + self._of_later_stages.pop(update, 0.0)
        if self._shape.is_first:
            self._known_update, self._known_norm_sq = update, total
        return total

    def global_norm_arrived(self, update: int, norm_sq: float, groups_done: int) -> None:
        """Take the sum over all stages for `update`, to which this stage has contributed `groups_done` groups."""
        require(self._shape.clip, "this run does not clip")
        require(update == self._known_update + 1, f"expected the norm of update {self._known_update + 1}")
        require(update < groups_done, "this stage has not given its part of it")
        self._known_update, self._known_norm_sq = update, norm_sq

    def is_ready(self, update: int) -> bool:
        """Say whether the update need not wait for its norm any longer."""
        return not self._waits or self._known_update == update

    @property
    def known_norm_sq(self) -> float | None:
        """The squared norm of the newest update whose norm is known here; None before the first."""
        return self._known_norm_sq

    def _require_on_group_end(self, micro_batch: int, norm_sq: float | None) -> None:
        expected = self._clip and self._shape.ends_group(micro_batch)
        if (norm_sq is not None) != expected:
            raise IllegalEventError("a norm belongs" if expected else "no norm belongs here")


class UpdateBoundary:
    """The snapshots and merges that are due at one stage."""

    def __init__(self, shape: StageShape, merged: int, contributed: int | None = None) -> None:
        """At the start, `merged` is the last round that was merged, and `contributed` the last that was contributed to;
        None: the same."""
        given = merged if contributed is None else contributed
        self._max_lag = shape.max_lag
        self.contributed = given
        self.merged = merged
        self._arrived = merged
        self._opened = given
        self._stamped = given
        self._due: deque[tuple[int, int]] = deque()
        """(update, round): the snapshot for `round` that is to follow `update`."""
        self._finish: tuple[int, int] | None = None
        """After a drain: (the last round to contribute to, the number of updates at which to do so)."""
        self.is_quiet = True
        """Whether, as far as is known here, there is no snapshot to take and no merge to apply, now or later."""
        self._finish_reported = -1

    @property
    def lag(self) -> int:
        """The number of rounds that this stage has contributed to and not yet merged."""
        return self.contributed - self.merged

    @property
    def last_update(self) -> int | None:
        """After a drain: the number of updates after which there are no more; None before."""
        return None if self._finish is None else self._finish[1]

    @property
    def opened(self) -> int:
        """The newest round of which it is known here that it is open."""
        return max(self._opened, self._stamped, 0 if self._finish is None else self._finish[0])

    def round_opened(self, number: int) -> None:
        """Take note, at the last stage, that round `number` is open and is to be stamped on a gradient."""
        require(self._finish is None, "the rounds to finish were already named")
        require(number == self._opened + 1, f"expected round {self._opened + 1}")
        self._opened = number

    def stamp_open_round(self, update: int) -> None:
        """Stamp the oldest open round, if any, on the group of `update`, which is complete at the last stage."""
        if self._stamped < self._opened:
            self.stamp(self._stamped + 1, update)

    def stamp_of(self, update: int) -> int | None:
        """Return the round whose snapshot is due after `update`; None where none is."""
        return next((number for of, number in self._due if of == update), None)

    def stamp(self, number: int, update: int) -> None:
        """Take note that a snapshot for round `number` is due after `update`."""
        require(number == self._stamped + 1, f"expected the stamp of round {self._stamped + 1}")
        require(self._finish is None or number <= self._finish[0], "no round beyond the last to finish")
        self._stamped = number
        self._due.append((update, number))
        self.is_quiet = False

    def finish(self, up_to: int, updates: int, version: int) -> None:
        """After a drain: contribute to all rounds up to `up_to` once the stage, now at `version`, is at `updates`."""
        least = max(self._stamped, self._opened) if self._finish is None else self._finish[0]
        require(up_to >= least, f"round {least} is open")
        require(self._finish is None or updates == self._finish[1], "the number of updates has changed")
        require(updates >= version, f"this stage is at version {version} already")
        self._finish = (up_to, updates)
        self.is_quiet = False

    def merge_arrived(self, number: int) -> None:
        """Round `number` is committed and its averages are here."""
        require(number == self._arrived + 1, f"expected round {self._arrived + 1}")
        require(number <= self.contributed, "this stage has not contributed to it")
        self._arrived = number
        self.is_quiet = False

    def next_step(self, version: int, untouched: bool) -> TakeSnapshot | ApplyMerge | None:
        """Return the snapshot or merge that is due, or None. `untouched`: whether a merge may change the weights."""
        number = self._snapshot_due(version)
        if number is not None and number - self._max_lag <= self.merged:
            return TakeSnapshot(number)
        if self.merged < self._arrived and untouched:
            return ApplyMerge(self.merged + 1)
        return None

    def holds(self, version: int) -> bool:
        """Say whether training waits here for a snapshot, which the lag may not permit yet."""
        return self._snapshot_due(version) is not None

    def snapshot_finished(self, number: int) -> None:
        """The stage has contributed to round `number`."""
        self.contributed = number
        if self._due and self._due[0][1] == number:
            self._due.popleft()
        self._look()

    def merge_finished(self, number: int) -> None:
        """The stage has merged round `number`."""
        self.merged = number
        self._look()

    def _look(self) -> None:
        self.is_quiet = not self._due and self.merged == self._arrived and self._finish is None

    def newly_finished(self, version: int) -> int | None:
        """Return, once, the last of the rounds to finish when all of them are merged; None otherwise."""
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
        """Raise AssertionError where an invariant does not hold. For tests."""
        assert self.merged <= self._arrived <= self.contributed
        assert 0 <= self.lag <= self._max_lag
        assert all(update >= version - 1 for update, _ in self._due), "a snapshot was passed over"
        assert [number for _, number in self._due] == sorted(number for _, number in self._due)
