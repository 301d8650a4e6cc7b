"""What can happen to a stage: the events that `StageMachine.handle` takes, in the past tense.

Decides nothing. Events name micro-batches, updates, rounds and evaluation batches by number; the tensors that
belong to them stay with the driver (the real runtime, or the virtual clock). Numbers count from 0, rounds
from 1.
"""

from __future__ import annotations

from ring_allreduce.records import record


@record
class Started:
    """The stage's weights are in place. Always the first event.

    The next micro-batch is `version · update_every`: a stage starts, and resumes, at an update boundary.
    `round` is the last round that was merged, and so also the last contributed to: a resume drops rounds that
    were pending.
    """

    version: int = 0
    round: int = 0


@record
class ActivationArrived:
    """The previous stage's output for a micro-batch is here. Not for the first stage."""

    micro_batch: int


@record
class GradientArrived:
    """The next stage's gradient for this stage's output is here. Not for the last stage.

    `snapshot_round`: this micro-batch ends a group, and after its update a snapshot for that round is due.
    `norm_sq`: with clipping, on the micro-batch that ends a group: the squared gradient norm of the group,
    summed over all later stages.
    """

    micro_batch: int
    snapshot_round: int | None = None
    norm_sq: float | None = None


@record
class ForwardFinished:
    micro_batch: int


@record
class BackwardFinished:
    """`norm_sq`: with clipping, on the micro-batch that ends a group: the squared norm of this stage's own
    accumulated gradient, before clipping. None otherwise."""

    micro_batch: int
    norm_sq: float | None = None


@record
class InputGradientsFinished:
    """The first part of a split backward: what goes back to the previous stage is computed."""

    micro_batch: int


@record
class WeightGradientsFinished:
    """The second part: the micro-batch is in the group's gradient."""

    micro_batch: int


@record
class UpdateFinished:
    update: int


@record
class RoundOpened:
    """The owner of rounds has opened one. Only the last stage hears of it: it stamps it on a gradient."""

    round: int


@record
class SnapshotFinished:
    round: int


@record
class MergeArrived:
    """The round is committed and this stage holds the averages of all its rings."""

    round: int


@record
class MergeFinished:
    round: int


@record
class GlobalNormArrived:
    """The squared gradient norm of one update, over all stages. The first stage makes the sum: not for it."""

    update: int
    norm_sq: float


@record
class DrainRequested:
    """Inject nothing beyond the group that has been begun. First stage only; asking twice is asking once."""


@record
class RoundsToFinish:
    """After a drain, for every stage: contribute to all rounds up to `up_to` once at version `updates`.

    May come again with a larger `up_to`. It replaces `RoundOpened` for a cluster that has drained: the other
    clusters may need its part in a round that opens, or was open, before they can drain too.
    """

    up_to: int
    updates: int


@record
class EvaluationRequested:
    """Pass `batches` held-out batches through the stages. First stage only; requests queue, numbers rise."""

    evaluation: int
    batches: int


@record
class EvaluationArrived:
    """The previous stage's output for one held-out batch of `batches` is here. Not for the first stage."""

    evaluation: int
    batch: int
    batches: int


@record
class EvaluationForwardFinished:
    evaluation: int
    batch: int


@record
class EvaluationCredited:
    """The last stage is done with this batch. First stage of several only."""

    evaluation: int
    batch: int


@record
class WindowChanged:
    """From now on the first stage keeps at most `window` micro-batches in flight. First stage only."""

    window: int


@record
class SplitChanged:
    """From now on backwards are `split`, or whole. Only for a stage that has room for what a split one keeps."""

    split: bool


Event = (
    Started
    | ActivationArrived
    | GradientArrived
    | ForwardFinished
    | BackwardFinished
    | InputGradientsFinished
    | WeightGradientsFinished
    | UpdateFinished
    | RoundOpened
    | SnapshotFinished
    | MergeArrived
    | MergeFinished
    | GlobalNormArrived
    | DrainRequested
    | RoundsToFinish
    | EvaluationRequested
    | EvaluationArrived
    | EvaluationForwardFinished
    | EvaluationCredited
    | WindowChanged
    | SplitChanged
)
