"""Which global gradient norm an update is clipped by.

The squared norm of update g is a sum over stages. Each adds its own to the partial sum of the later stages,
that came with the gradient of the group's last micro-batch; the first stage completes it and sends it forward
again.

- Synchronous (`max_staleness` 0), or one stage: update g waits for the norm of g. Exact.
- Asynchronous: the last norm known here, of a past update; none before the first is known. (The first stage
  knows that of g itself.) Design §6.
"""

from __future__ import annotations

from ravnest.pipeline.stage_shape import IllegalEventError, StageShape, require


class Norms:
    def __init__(self, shape: StageShape, version: int) -> None:
        self._shape = shape
        self._clip = shape.clip
        self._waits = shape.clip and shape.max_staleness == 0
        self._of_later_stages: dict[int, float] = {}
        self._known_update = version - 1
        self._known_norm_sq: float | None = None

    def gradient_arrived(self, micro_batch: int, norm_sq: float | None) -> None:
        """The partial sum of all later stages."""
        self._require_on_group_end(micro_batch, norm_sq)
        if norm_sq is not None:
            self._of_later_stages[micro_batch // self._shape.update_every] = norm_sq

    def backward_finished(self, micro_batch: int, norm_sq: float | None) -> float | None:
        """Take this stage's own part. Returns the sum of it and the later stages' (None: there is none)."""
        self._require_on_group_end(micro_batch, norm_sq)
        if norm_sq is None:
            return None
        update = micro_batch // self._shape.update_every
        total = norm_sq + self._of_later_stages.pop(update, 0.0)
        if self._shape.is_first:
            self._known_update, self._known_norm_sq = update, total
        return total

    def global_norm_arrived(self, update: int, norm_sq: float, groups_done: int) -> None:
        require(self._shape.clip, "this run does not clip")
        require(update == self._known_update + 1, f"expected the norm of update {self._known_update + 1}")
        require(update < groups_done, "this stage has not given its part of it")
        self._known_update, self._known_norm_sq = update, norm_sq

    def is_ready(self, update: int) -> bool:
        """Whether the update need not wait for its norm."""
        return not self._waits or self._known_update == update

    @property
    def known_norm_sq(self) -> float | None:
        return self._known_norm_sq

    def _require_on_group_end(self, micro_batch: int, norm_sq: float | None) -> None:
        expected = self._clip and self._shape.ends_group(micro_batch)
        if (norm_sq is not None) != expected:
            raise IllegalEventError("a norm belongs" if expected else "no norm belongs here")
