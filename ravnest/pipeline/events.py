"""What can happen to a stage: the events that `StageMachine.handle` takes, named in the past tense.

Events name micro-batches, updates, rounds and evaluation batches by number. The tensors that belong to them stay with
whoever drives the machine: the real runtime, or the virtual clock. Numbers count from 0, those of rounds from 1.
"""

from __future__ import annotations

from ring_allreduce.ring import record


@record
class Started:
    """The stage's weights are in place. This is always the first event.

    The next micro-batch is `version · update_every`: a stage starts, and resumes, at an update boundary.
    `round` is the last round that was merged. `contributed` is the last that was contributed to; None: it is the same,
    since a resume drops rounds that were pending. A stage that joins a run under way may have contributed to more.
    """

    version: int = 0
    round: int = 0
    contributed: int | None = None


@record
class DriverSilent:
    """The first stage hears no driver any more: it finishes what is in flight, and begins nothing new."""


@record
class DriverHeard:
    """It hears a driver again, and goes on. `another`: one that has heard no report of this stage yet."""

    another: bool = False


@record
class ActivationArrived:
    """The previous stage's output for a micro-batch is here. The first stage never hears of one."""

    micro_batch: int


@record
class GradientArrived:
    """The next stage's gradient for this stage's output is here. The last stage never hears of one.

    `snapshot_round`: where it is set, this micro-batch ends a group, and a snapshot for that round is due after its
    update.
    `norm_sq`: with clipping, on the micro-batch that ends a group: the squared gradient norm of the group,
    summed over all later stages.
    """

    micro_batch: int
    snapshot_round: int | None = None
    norm_sq: float | None = None


@record
class ForwardFinished:
    """The forward of a micro-batch is computed."""

    micro_batch: int


@record
class BackwardFinished:
    """The whole backward of a micro-batch is computed.

    `norm_sq`: with clipping, on the micro-batch that ends a group, the squared norm of this stage's own accumulated
    gradient before clipping; None otherwise.
    """

    micro_batch: int
    norm_sq: float | None = None


@record
class InputGradientsFinished:
    """The first part of a split backward is computed: what goes back to the previous stage."""

    micro_batch: int


@record
class WeightGradientsFinished:
    """The second part of a split backward is computed: the micro-batch is in the group's gradient."""

    micro_batch: int


@record
class UpdateFinished:
    """The optimizer step is made."""

    update: int


@record
class RoundOpened:
    """The owner of rounds has opened one. Only the last stage hears of it, and stamps it on a gradient."""

    round: int


@record
class ContributionFinished:
    """The snapshot is taken: the stage has contributed to the round."""

    round: int


@record
class MergeArrived:
    """The round is committed and this stage holds the averages of all its rings."""

    round: int


@record
class MergeFinished:
    """The stage has merged the round."""

    round: int


@record
class GlobalNormArrived:
    """The squared gradient norm of one update over all stages is here. The first stage makes the sum itself."""

    update: int
    norm_sq: float


@record
class DrainRequested:
    """The first stage is asked to inject nothing beyond the group that has been begun. Asking again has no effect."""


@record
class RoundsToFinish:
    """After a drain every stage is asked to contribute to all rounds up to `up_to` once it is at version `updates`.

    The event may come again with a larger `up_to`. It replaces `RoundOpened` for a cluster that has drained: the other
    clusters may need its part in a round that opens, or was open, before they can drain too.
    """

    up_to: int
    updates: int


@record
class EvaluationRequested:
    """The first stage is asked to pass `batches` held-out batches through the stages. Requests queue; numbers rise."""

    evaluation: int
    batches: int


@record
class EvaluationArrived:
    """The previous stage's output for one held-out batch of `batches` is here. The first stage reads its own."""

    evaluation: int
    batch: int
    batches: int


@record
class EvaluationForwardFinished:
    """The forward of a held-out batch is computed."""

    evaluation: int
    batch: int


@record
class EvaluationCredited:
    """The last stage is done with this batch. Only the first of several stages hears of it."""

    evaluation: int
    batch: int


@record
class WindowChanged:
    """The first stage, which alone hears of it, keeps at most `window` micro-batches in flight from now on."""

    window: int


@record
class SplitChanged:
    """Backwards are `split`, or whole, from now on. Only a stage with room for what a split one keeps may hear it."""

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
    | ContributionFinished
    | MergeArrived
    | MergeFinished
    | GlobalNormArrived
    | DrainRequested
    | DriverSilent
    | DriverHeard
    | RoundsToFinish
    | EvaluationRequested
    | EvaluationArrived
    | EvaluationForwardFinished
    | EvaluationCredited
    | WindowChanged
    | SplitChanged
)
