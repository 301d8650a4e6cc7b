"""The headers that stages and the driver send each other, and how long they wait for each other. Tensors travel beside
the headers, raw.

All of them travel in the pipeline lane but `StateTensor` and `StateSent`, which are bulk. Ring chunks are kinds of
ring_allreduce. The deadlines here are constants, and the floors of those that are measured (design §9): what
turns measurements into a deadline is ring_allreduce/rounds/deadlines.py, and docs/deadlines.md has the table of all.

A fact that another layer names too, as an event of the stage machine, of the rounds or of the run's observers, has the
same name here with the suffix Message: `RoundOpenedMessage` carries what becomes the event `RoundOpenedMessage`.
"""

from typing import Literal

from ring_allreduce.ring import RING_KINDS
from ring_allreduce.transport import Codec, Message

DRIVER = "driver"
"""The driver's transport name."""

ALIVE_EVERY_S = 1.0
"""How often the driver and the stages tell each other that they live."""

START_DEADLINE_S = 180.0
"""The longest time for Ray, the actors and their imports. Nothing has been measured by then, so it is a constant."""

STATE_DEADLINE_S = 120.0
"""The longest time without one more piece of state arriving while weights are handed out or collected."""

STALL_FLOOR_S = 60.0
"""A run in which no stage makes any progress for this long, or for many times its usual gap, has stalled."""


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


class RoundOpenedMessage(Message, frozen=True, kw_only=True, tag="round_opened"):
    """To a cluster's last stage: stamp this round on the next update."""

    round: int


class RoundCommittedMessage(Message, frozen=True, kw_only=True, tag="round_committed"):
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


# driver ↔ stage


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


# stage → driver


class StageStarted(Message, frozen=True, kw_only=True, tag="started"):
    """The stage holds its state and has entered the pipeline. `process_bytes`: its resident memory by then."""

    process_bytes: int


class Updated(Message, frozen=True, kw_only=True, tag="updated"):
    """An update was made. `losses` only from a last stage: one per micro-batch, in order.

    `spent`: the stage's ledger so far, seconds by state.
    """

    update: int
    staleness: tuple[int, ...]
    losses: tuple[float, ...]
    lr: float
    spent: dict[str, float] = {}  # noqa: RUF012 - each message gets a dict of its own


class WindowTuned(Message, frozen=True, kw_only=True, tag="window_tuned"):
    """A first stage has changed its window. `round_trip_s`: without waiting for stages; `pace_s`: what the narrowest
    place takes for a micro-batch."""

    window: int
    round_trip_s: float
    pace_s: float


class BackwardSplit(Message, frozen=True, kw_only=True, tag="backward_split"):
    """A stage splits its backward from now on, or does not, by what it measured: seconds of a whole backward, of both
    parts of a split one, and from one micro-batch to the next. `refused`: why it never can."""

    splits: bool
    refused: str = ""
    whole_s: float = 0.0
    input_s: float = 0.0
    weight_s: float = 0.0
    period_s: float = 0.0


class ContributionFinishedMessage(Message, frozen=True, kw_only=True, tag="contribution_finished"):
    """The stage has contributed to a round, after `update` updates."""

    round: int
    update: int


class RingFinishedMessage(Message, frozen=True, kw_only=True, tag="ring_finished"):
    """One of the stage's rings holds the round's average."""

    round: int
    ring: int


class RoundMerged(Message, frozen=True, kw_only=True, tag="round_merged"):
    """The stage has moved its anchor."""

    round: int


class StateSent(Message, frozen=True, kw_only=True, tag="state_sent"):
    """All `tensors` pieces of the checkpoint of `round` have been sent by this stage."""

    round: int
    tensors: int


class Drained(Message, frozen=True, kw_only=True, tag="drained"):
    """A first stage has nothing in flight and has made its last update."""

    micro_batches: int
    updates: int


class RoundsFinished(Message, frozen=True, kw_only=True, tag="rounds_finished"):
    """Nothing is pending: the stage's weights are the anchor. `spent` as in Updated."""

    up_to: int
    spent: dict[str, float] = {}  # noqa: RUF012 - each message gets a dict of its own


class EvaluationFinished(Message, frozen=True, kw_only=True, tag="evaluated"):
    """(sum, count) over the held-out set, of the loss and of each metric in the job's order."""

    evaluation: int
    loss: tuple[float, int]
    metrics: tuple[tuple[float, int], ...]


class Spans(Message, frozen=True, kw_only=True, tag="spans"):
    """A piece of the stage's timeline: one entry of each column is a span, times by the stage's own clock.

    `lanes` and `kinds` as in runtime/timeline.py; a number of -1 is none. `dropped`: spans beyond the limit so far.
    """

    lanes: tuple[int, ...]
    kinds: tuple[str, ...]
    numbers: tuple[int, ...]
    began_s: tuple[float, ...]
    ended_s: tuple[float, ...]
    dropped: int


class ImitationLateness(Message, frozen=True, kw_only=True, tag="imitated"):
    """How late this machine has been so far. `late_s` of `imitated_s` of computing, since the first update;
    `links_late_s` over `messages` that passed emulated links."""

    late_s: float
    imitated_s: float
    links_late_s: float
    messages: int


class MemoryPeaks(Message, frozen=True, kw_only=True, tag="held"):
    """The most that the stage's tensors have taken so far, each part at its own peak: runtime/memory.py names them."""

    tensor_bytes: dict[str, int]


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
    StateSent,
    Drained,
    RoundsFinished,
    EvaluationFinished,
    Spans,
    MemoryPeaks,
    ImitationLateness,
    *RING_KINDS,
)


def codec() -> Codec:
    """What every endpoint of a run speaks."""
    return Codec(KINDS)
