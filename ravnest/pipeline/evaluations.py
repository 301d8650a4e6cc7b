"""Held-out batches on their way through the stages, interleaved by the stage machine with training.

The first stage keeps at most `stages + 1` of them in flight. The last stage credits each one back to the first, and
reports an evaluation when its last batch is done. Evaluations that are requested meanwhile queue up.
"""

from __future__ import annotations

from collections import deque
from typing import assert_never

from ravnest.pipeline.events import EvaluationArrived, EvaluationCredited, EvaluationRequested
from ravnest.pipeline.instructions import (
    CreditEvaluation,
    Instruction,
    ReportEvaluation,
    RunEvaluation,
    SendEvaluation,
)
from ravnest.pipeline.stage_shape import StageShape, require


class Evaluations:
    """The evaluations of one stage: which batches wait, which one runs, and which are in flight."""

    def __init__(self, shape: StageShape) -> None:
        self._shape = shape
        self._window = shape.stages + 1
        self.waiting: deque[tuple[int, int, int]] = deque()
        """(evaluation, next batch, batches): one entry an evaluation at the first stage, one a batch at the others."""
        self._running: tuple[int, int, int] | None = None
        self._uncredited: deque[tuple[int, int]] = deque()
        self.newest = -1
        """The evaluation that was begun last; -1 before the first."""
        self._expected: tuple[int, int, int] | None = None

    @property
    def is_ready(self) -> bool:
        """Whether a batch waits and the bound on those in flight lets it begin."""
        return bool(self.waiting) and len(self._uncredited) < self._window

    def take(self, event: EvaluationRequested | EvaluationArrived | EvaluationCredited) -> None:
        """Take what has happened. Raises IllegalEventError where it cannot be."""
        match event:
            case EvaluationRequested(evaluation, batches):
                require(self._shape.is_first, "evaluations are requested of the first stage")
                self.requested(evaluation, batches)
            case EvaluationArrived(evaluation, batch, batches):
                require(not self._shape.is_first, "the first stage reads its own batches")
                self.arrived(evaluation, batch, batches)
            case EvaluationCredited(evaluation, batch):
                self.credited(evaluation, batch)
            case _:
                assert_never(event)

    def requested(self, evaluation: int, batches: int) -> None:
        require(evaluation > self.newest, f"evaluation {self.newest} was requested before")
        require(batches >= 1, "an evaluation has at least one batch")
        self.newest = evaluation
        self.waiting.append((evaluation, 0, batches))

    def arrived(self, evaluation: int, batch: int, batches: int) -> None:
        if self._expected is None:
            require(evaluation > self.newest and batch == 0, "expected the first batch of a new evaluation")
        else:
            require((evaluation, batch, batches) == self._expected, f"expected {self._expected}")
        require(batch < batches, "there is no such batch")
        self.newest = evaluation
        self._expected = (evaluation, batch + 1, batches) if batch + 1 < batches else None
        self.waiting.append((evaluation, batch, batches))

    def start(self) -> RunEvaluation:
        """Begin the next batch, which `is_ready` has promised."""
        evaluation, batch, batches = self._running = self.waiting.popleft()
        if self._shape.is_first:
            if batch + 1 < batches:
                self.waiting.appendleft((evaluation, batch + 1, batches))
            if not self._shape.is_last:
                self._uncredited.append((evaluation, batch))
        return RunEvaluation(evaluation, batch)

    def finished(self) -> list[Instruction]:
        """Take note that the batch that was begun is computed, and return what to send and to report."""
        assert self._running is not None
        (evaluation, batch, batches), self._running = self._running, None
        if not self._shape.is_last:
            return [SendEvaluation(evaluation, batch, batches)]
        done: list[Instruction] = []
        if not self._shape.is_first:
            done.append(CreditEvaluation(evaluation, batch))
        if batch + 1 == batches:
            done.append(ReportEvaluation(evaluation))
        return done

    def credited(self, evaluation: int, batch: int) -> None:
        require(
            bool(self._uncredited) and self._uncredited[0] == (evaluation, batch),
            "it is not the oldest batch in flight",
        )
        self._uncredited.popleft()

    def check(self) -> None:
        """Raise AssertionError where an invariant does not hold. For tests."""
        assert len(self._uncredited) <= self._window
