"""The headers that stages and the driver send each other. Tensors travel beside them, raw.

Pipeline lane: everything here except `StateTensor`, which is bulk. Ring chunks are ring_allreduce's own kind, what
stages tell the driver is in reported.py. A header says what a body is; it decides nothing.
"""

from typing import Literal

from ravnest.stage.reported import (
    BackwardSplit,
    Drained,
    Evaluated,
    Held,
    Imitated,
    RingFinished,
    RoundMerged,
    RoundsFinished,
    SnapshotTaken,
    Spans,
    Started,
    StateSent,
    Updated,
    WindowTuned,
)
from ring_allreduce.ring import RING_KINDS
from ring_allreduce.transport import Codec, Message

__all__ = [
    "DRIVER",
    "KINDS",
    "Activation",
    "Alive",
    "BackwardSplit",
    "Begin",
    "Drain",
    "Drained",
    "Evaluate",
    "Evaluated",
    "EvaluationActivation",
    "EvaluationCredit",
    "FinishRounds",
    "GlobalNorm",
    "Go",
    "Gradient",
    "Held",
    "Imitated",
    "RingFinished",
    "RoundCommitted",
    "RoundMerged",
    "RoundOpened",
    "RoundsFinished",
    "SnapshotTaken",
    "Spans",
    "Started",
    "StateSent",
    "StateTensor",
    "Stop",
    "TiedGradients",
    "TiedWeights",
    "Updated",
    "WindowTuned",
    "codec",
]

DRIVER = "driver"


# stage → next stage


class Activation(Message, frozen=True, kw_only=True, tag="activation"):
    """A micro-batch's boundary tensors, in the order of the sender's outputs."""

    micro_batch: int


class GlobalNorm(Message, frozen=True, kw_only=True, tag="global_norm"):
    """The squared norm of a whole cluster's gradient at one update."""

    update: int
    norm_sq: float


class TiedWeights(Message, frozen=True, kw_only=True, tag="tied_weights"):
    """Tied parameters by name, as their owner's update `version` left them: see tied.py."""

    version: int
    names: tuple[str, ...]


class EvaluationActivation(Message, frozen=True, kw_only=True, tag="evaluation_activation"):
    """A held-out batch's boundary tensors: one of `batches`."""

    evaluation: int
    batch: int
    batches: int


# stage → previous stage


class Gradient(Message, frozen=True, kw_only=True, tag="gradient"):
    """The gradients of the boundary tensors that need one. `snapshot_round` is set on the micro-batch
    whose update every stage of the cluster must follow with a snapshot for that round.

    `queued_s`: how long the micro-batch waited for the sender and the stages behind it; `busiest_s`: the most that one
    of them takes for a micro-batch. The first stage sizes the window by them.
    """

    micro_batch: int
    snapshot_round: int | None = None
    norm_sq: float | None = None
    queued_s: float = 0.0
    busiest_s: float = 0.0


class TiedGradients(Message, frozen=True, kw_only=True, tag="tied_gradients"):
    """What the sender and the stages behind it add to an update's gradient of tied parameters."""

    update: int
    names: tuple[str, ...]


# last stage → first stage


class EvaluationCredit(Message, frozen=True, kw_only=True, tag="evaluation_credit"):
    """The last stage has finished a held-out batch: the first may send another."""

    evaluation: int
    batch: int


# driver → stage


class StateTensor(Message, frozen=True, kw_only=True, tag="state_tensor"):
    """One tensor of a stage's state, either way. `part` says which; `key` is the optimizer's name for it.

    driver → stage: initial or resumed weights, buffers and optimizer state.
    stage → driver: the anchor of a segment, or optimizer state, for the checkpoint of `round`.
    """

    part: Literal["weight", "optimizer"]
    name: str
    key: str = ""
    round: int = 0


class Begin(Message, frozen=True, kw_only=True, tag="begin"):
    """Start at this version once all `tensors` pieces of state are here: they may still be under way."""

    tensors: int
    version: int


class Go(Message, frozen=True, kw_only=True, tag="go"):
    """To the first stages: every stage of the run holds its state, so inject."""


class RoundOpened(Message, frozen=True, kw_only=True, tag="round_opened"):
    """To a cluster's last stage: stamp this round on the next update."""

    round: int


class RoundCommitted(Message, frozen=True, kw_only=True, tag="round_committed"):
    """Every ring of the round has finished: merge it. With `save`, send the anchor and optimizer state after it."""

    round: int
    save: bool = False


class Drain(Message, frozen=True, kw_only=True, tag="drain"):
    """To a first stage: inject nothing beyond the current update's micro-batches."""


class FinishRounds(Message, frozen=True, kw_only=True, tag="finish_rounds"):
    """To every stage of a drained cluster: contribute to all rounds up to this one, after update `updates`.

    May come again with a later round. After the `final` one all progress is in the anchor.
    """

    up_to: int
    updates: int
    final: bool


class Evaluate(Message, frozen=True, kw_only=True, tag="evaluate"):
    """To a first stage: pass the held-out set through the stages."""

    evaluation: int
    batches: int


class Stop(Message, frozen=True, kw_only=True, tag="stop"):
    """Leave: the run is over."""


class Alive(Message, frozen=True, kw_only=True, tag="alive"):
    """Sent each second, both ways, so that silence means something.

    `finished`: what a stage has got done so far, tensors received or computations. A number that changes is progress,
    also where nothing else is reported for long: a first update, an evaluation.

    `sent_s`: the sender's clock. In a stage's: `echo_s`, the driver's `sent_s` that it heard last, at `heard_s` of its
    own.
    """

    finished: int = 0
    sent_s: float | None = None
    echo_s: float | None = None
    heard_s: float | None = None


KINDS: tuple[type[Message], ...] = (
    Activation,
    GlobalNorm,
    EvaluationActivation,
    Gradient,
    TiedWeights,
    TiedGradients,
    EvaluationCredit,
    StateTensor,
    Begin,
    Go,
    RoundOpened,
    RoundCommitted,
    Drain,
    FinishRounds,
    Evaluate,
    Stop,
    Alive,
    Started,
    Updated,
    WindowTuned,
    BackwardSplit,
    SnapshotTaken,
    RingFinished,
    RoundMerged,
    StateSent,
    Drained,
    RoundsFinished,
    Evaluated,
    Spans,
    Held,
    Imitated,
    *RING_KINDS,
)


def codec() -> Codec:
    """What every endpoint of a run speaks."""
    return Codec(KINDS)
