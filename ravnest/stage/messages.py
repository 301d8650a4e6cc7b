"""The messages that stages and the driver send each other, and how long they wait for each other.

A message is a header; its tensors travel raw beside it. All messages travel in the pipeline lane, except `StateTensor`
and those of state_messages.py, which are bulk. The chunks of rings are messages of ring_allreduce.

The deadlines here are constants, or floors of what ring_allreduce/rounds/deadlines.py measures: docs/deadlines.md.

Every number, text and collection has bounds (message_fields.py). Who sends what is beyond them ends the run.

Where another layer has a name for the same fact, as an event of the stage machine, of the rounds or of the run's
observers, the message has that name with the suffix Message: `RoundOpenedMessage` becomes the event `RoundOpened`.
"""

from typing import Annotated, Literal

from ravnest.stage.donor_messages import DONOR_KINDS
from ravnest.stage.epoch_messages import EPOCH_KINDS
from ravnest.stage.expert_reports import ExpertsAsked
from ravnest.stage.message_fields import (
    ByName,
    Lane,
    LearningRate,
    Losses,
    Names,
    Piece,
    Rates,
    Shape,
    SpanNumber,
    Spent,
    Stalenesses,
    Sums,
    Word,
    require_no_negative,
)
from ravnest.stage.shadow_messages import SHADOW_KINDS
from ravnest.stage.state_messages import STATE_KINDS
from ring_allreduce.ring import FOLLOWED_KINDS, RING_KINDS
from ring_allreduce.transport import ClockSeconds, Codec, Count, Message, Name, Seconds, Text, at_most

DRIVER = "driver"
"""The driver's transport name."""

ALIVE_EVERY_S = 1.0
"""How often the driver and the stages tell each other that they live."""

STOOD_STILL_S = 3.0
"""A process that has not looked at its clock for longer stood still itself: nobody was silent (`AwakeTime`)."""

START_DEADLINE_S = 180.0
"""The longest time for Ray, the actors and their imports. Nothing has been measured by then, so it is a constant."""

STATE_DEADLINE_S = 120.0
"""The longest time without one more piece of state arriving while weights are handed out or collected."""

STALL_FLOOR_S = 60.0
"""A run in which no stage makes any progress for this long, or for many times its usual gap, has stalled."""


# stage → next stage


class Activation(Message, frozen=True, kw_only=True, tag="activation"):
    """It carries a micro-batch's boundary tensors, in the order of the sender's outputs."""

    micro_batch: Count


class GlobalNorm(Message, frozen=True, kw_only=True, tag="global_norm"):
    """It carries the squared norm of a whole cluster's gradient at one update."""

    update: Count
    norm_sq: float

    def __post_init__(self) -> None:
        require_no_negative(self.norm_sq)


class TiedWeights(Message, frozen=True, kw_only=True, tag="tied_weights"):
    """It carries tied parameters by name, in the version that their owner has after `version` updates (tied.py)."""

    version: Count
    names: Names


class EvaluationActivation(Message, frozen=True, kw_only=True, tag="evaluation_activation"):
    """It carries the boundary tensors of one held-out batch of `batches`."""

    evaluation: Count
    batch: Count
    batches: Count


# stage → previous stage


class Gradient(Message, frozen=True, kw_only=True, tag="gradient"):
    """It carries the gradients of those boundary tensors that need one.

    `snapshot_round` is set on a micro-batch that ends an update after which every stage of the cluster must take a
    snapshot for that round. `queued_s` is how long the micro-batch waited for the sender and the stages behind it, and
    `busiest_s` is the most that one of them takes for a micro-batch. The first stage sizes the window by the two."""

    micro_batch: Count
    snapshot_round: Count | None = None
    norm_sq: float | None = None
    queued_s: Seconds = 0.0
    busiest_s: Seconds = 0.0

    def __post_init__(self) -> None:
        require_no_negative(self.norm_sq)


class TiedGradients(Message, frozen=True, kw_only=True, tag="tied_gradients"):
    """It carries what the sender and the stages behind it add to an update's gradient of tied parameters."""

    update: Count
    names: Names


# last stage → first stage


class EvaluationCredit(Message, frozen=True, kw_only=True, tag="evaluation_credit"):
    """The last stage has finished a held-out batch, so the first may send another."""

    evaluation: Count
    batch: Count


# driver → stage


class StateTensor(Message, frozen=True, kw_only=True, tag="state_tensor"):
    """It carries a tensor of the state that a stage starts from, or, flat, a piece of one of that `shape` from element
    `start` on, in order. `key` is the optimizer's name for it."""

    part: Literal["weight", "optimizer"]
    name: Name
    key: Name = ""
    shape: Shape | None = None
    start: Count = 0


class Begin(Message, frozen=True, kw_only=True, tag="begin"):
    """The stage is to start at this version once all `tensors` of its state are here. Some may be under way.

    For a stage that joins a run under way, the weights are the anchor of `round`.
    """

    tensors: Count
    version: Count
    round: Count = 0


class Go(Message, frozen=True, kw_only=True, tag="go"):
    """It goes to the first stages, which may inject now: every stage of the run holds its state."""


class RoundOpenedMessage(Message, frozen=True, kw_only=True, tag="round_opened"):
    """It goes to a cluster's last stage, which is to stamp this round on the next update."""

    round: Count


class RoundCommittedMessage(Message, frozen=True, kw_only=True, tag="round_committed"):
    """Every ring of the round has finished, so the stage is to merge it. With `save` it is to send the anchor and the
    optimizer state then."""

    round: Count
    save: bool = False


class Drain(Message, frozen=True, kw_only=True, tag="drain"):
    """It goes to a first stage, which is to inject nothing beyond the current update's micro-batches."""


class FinishRounds(Message, frozen=True, kw_only=True, tag="finish_rounds"):
    """It goes to every stage of a drained cluster, which is to contribute to all rounds up to `up_to` after `updates`
    updates.

    It may come again with a later round. After the `final` one all progress is in the anchor.
    """

    up_to: Count
    updates: Count
    final: bool


class Evaluate(Message, frozen=True, kw_only=True, tag="evaluate"):
    """It goes to a first stage, which is to pass the held-out set through the stages."""

    evaluation: Count
    batches: Count


class Stop(Message, frozen=True, kw_only=True, tag="stop"):
    """The run is over, so the stage is to leave."""


# driver ↔ stage


class Alive(Message, frozen=True, kw_only=True, tag="alive"):
    """It is sent each second in both directions, so that silence means something.

    `finished` is how much a stage has done so far: tensors received, then computations. A number that changes is
    progress, also where nothing else is reported for long, as in a first update or an evaluation. `sent_s` is the
    sender's clock. A stage adds `echo_s`, the last `sent_s` that it heard from the driver, and `heard_s`, when it
    heard it by its own clock.
    """

    finished: Count = 0
    sent_s: ClockSeconds | None = None
    echo_s: ClockSeconds | None = None
    heard_s: ClockSeconds | None = None


# stage → driver


class StageStarted(Message, frozen=True, kw_only=True, tag="started"):
    """The stage holds its state and has entered the pipeline. `process_bytes` is its resident memory then."""

    process_bytes: Count


class Updated(Message, frozen=True, kw_only=True, tag="updated"):
    """The stage has made an update.

    Only a last stage sends `losses`: one for each micro-batch, in order. `spent` is the stage's ledger so far, in
    seconds by state.
    """

    update: Count
    staleness: Stalenesses
    losses: Losses
    lr: LearningRate
    spent: Spent = {}  # noqa: RUF012 - each message gets a dict of its own


class WindowTuned(Message, frozen=True, kw_only=True, tag="window_tuned"):
    """A first stage has changed its window. `round_trip_s` is the round trip without waiting for stages, and `pace_s`
    is what the slowest part of the pipeline takes for a micro-batch."""

    window: Count
    round_trip_s: ClockSeconds
    pace_s: Seconds


class BackwardSplit(Message, frozen=True, kw_only=True, tag="backward_split"):
    """A stage splits its backward from now on, or does not.

    It decides by the seconds that it measured: of a whole backward, of both parts of a split one, and from one
    micro-batch to the next. `refused` says why it can never split.
    """

    splits: bool
    refused: Text = ""
    whole_s: Seconds = 0.0
    input_s: Seconds = 0.0
    weight_s: Seconds = 0.0
    period_s: Seconds = 0.0


class ContributionFinishedMessage(Message, frozen=True, kw_only=True, tag="contribution_finished"):
    """The stage has taken its snapshot after `update` updates, and contributed to a round with it."""

    round: Count
    update: Count


class RingFinishedMessage(Message, frozen=True, kw_only=True, tag="ring_finished"):
    """One of the stage's rings holds the round's average, in this epoch of membership, for which `received_bytes` came.
    `hops`: bytes per second at which each member's own part came, as last measured, if large enough to be timed."""

    round: Count
    ring: Count
    epoch: Count
    received_bytes: Count = 0
    hops: Rates = {}  # noqa: RUF012 - each message gets a dict of its own


class RoundMerged(Message, frozen=True, kw_only=True, tag="round_merged"):
    """The stage has merged a round, which moved its anchor."""

    round: Count


class Drained(Message, frozen=True, kw_only=True, tag="drained"):
    """A first stage has nothing in flight and has made its last update."""

    micro_batches: Count
    updates: Count


class RoundsFinished(Message, frozen=True, kw_only=True, tag="rounds_finished"):
    """No round is pending: the stage's weights are the anchor. `spent` is as in Updated."""

    up_to: Count
    spent: Spent = {}  # noqa: RUF012 - each message gets a dict of its own


class EvaluationFinished(Message, frozen=True, kw_only=True, tag="evaluated"):
    """It carries (sum, count) over the held-out set, of the loss and of each metric in the job's order."""

    evaluation: Count
    loss: Sums
    metrics: Annotated[tuple[Sums, ...], at_most(1000)]


class Spans(Message, frozen=True, kw_only=True, tag="spans"):
    """It carries a piece of the stage's timeline. One entry of each column is a span; times are by the stage's clock.

    reports.py says what `lanes` and `kinds` are. A number of -1 means that there is none. `dropped` is how many spans
    were beyond the limit so far.
    """

    lanes: Annotated[tuple[Lane, ...], Piece]
    kinds: Annotated[tuple[Word, ...], Piece]
    numbers: Annotated[tuple[SpanNumber, ...], Piece]
    began_s: Annotated[tuple[ClockSeconds, ...], Piece]
    ended_s: Annotated[tuple[ClockSeconds, ...], Piece]
    dropped: Count


class ImitationLateness(Message, frozen=True, kw_only=True, tag="imitated"):
    """It says how late this machine has been so far: `late_s` of `imitated_s` of computing since the first update, and
    `links_late_s` in all `messages` that passed emulated links."""

    late_s: Seconds
    imitated_s: Seconds
    links_late_s: Seconds
    messages: Count


class MemoryPeaks(Message, frozen=True, kw_only=True, tag="held"):
    """It carries the most bytes that the stage's tensors have taken so far, each part at its own peak (memory.py)."""

    tensor_bytes: ByName


class LinksUsed(Message, frozen=True, kw_only=True, tag="links"):
    """It says how many bytes the stage has sent to each peer since it began, in the pipeline's lane and in bulk."""

    pipeline_bytes: ByName
    bulk_bytes: ByName


class StrangersRefused(Message, frozen=True, kw_only=True, tag="strangers"):
    """It says how many connections of each address the stage's ports have refused so far, where there are more."""

    connections: ByName


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
    RoundOpenedMessage,
    RoundCommittedMessage,
    Drain,
    FinishRounds,
    Evaluate,
    Stop,
    Alive,
    StageStarted,
    Updated,
    WindowTuned,
    BackwardSplit,
    ContributionFinishedMessage,
    RingFinishedMessage,
    RoundMerged,
    Drained,
    RoundsFinished,
    EvaluationFinished,
    Spans,
    MemoryPeaks,
    ImitationLateness,
    LinksUsed,
    StrangersRefused,
    *EPOCH_KINDS,
    *DONOR_KINDS,
    *STATE_KINDS,
    *SHADOW_KINDS,
    *RING_KINDS,
    *FOLLOWED_KINDS,
    ExpertsAsked,
)


def codec() -> Codec:
    """The codec of every endpoint of a run."""
    return Codec(KINDS)
