"""The messages that stages and the driver send each other, and how long they wait for each other.

A message is a header; its tensors travel raw beside it. All messages travel in the pipeline lane, except `StateTensor`
and `StateSent`, which are bulk. The chunks of rings are messages of ring_allreduce.

The deadlines here are constants, or floors of deadlines that are measured (design §9).
ring_allreduce/rounds/deadlines.py turns measurements into deadlines, and docs/deadlines.md has the table of all.

Where another layer has a name for the same fact, as an event of the stage machine, of the rounds or of the run's
observers, the message has that name with the suffix Message: `RoundOpenedMessage` becomes the event `RoundOpened`.
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
    """It carries a micro-batch's boundary tensors, in the order of the sender's outputs."""

    micro_batch: int


class GlobalNorm(Message, frozen=True, kw_only=True, tag="global_norm"):
    """It carries the squared norm of a whole cluster's gradient at one update."""

    update: int
    norm_sq: float


class TiedWeights(Message, frozen=True, kw_only=True, tag="tied_weights"):
    """It carries tied parameters by name, in the version that their owner has after `version` updates (tied.py)."""

    version: int
    names: tuple[str, ...]


class EvaluationActivation(Message, frozen=True, kw_only=True, tag="evaluation_activation"):
    """It carries the boundary tensors of one held-out batch of `batches`."""

    evaluation: int
    batch: int
    batches: int


# stage → previous stage


class Gradient(Message, frozen=True, kw_only=True, tag="gradient"):
    """It carries the gradients of those boundary tensors that need one.

    `snapshot_round` is set on a micro-batch that ends an update after which every stage of the cluster must take a
    snapshot for that round. `queued_s` is how long the micro-batch waited for the sender and the stages behind it, and
    `busiest_s` is the most that one of them takes for a micro-batch. The first stage sizes the window by the two.
    """

    micro_batch: int
    snapshot_round: int | None = None
    norm_sq: float | None = None
    queued_s: float = 0.0
    busiest_s: float = 0.0


class TiedGradients(Message, frozen=True, kw_only=True, tag="tied_gradients"):
    """It carries what the sender and the stages behind it add to an update's gradient of tied parameters."""

    update: int
    names: tuple[str, ...]


# last stage → first stage


class EvaluationCredit(Message, frozen=True, kw_only=True, tag="evaluation_credit"):
    """The last stage has finished a held-out batch, so the first may send another."""

    evaluation: int
    batch: int


# driver → stage


class StateTensor(Message, frozen=True, kw_only=True, tag="state_tensor"):
    """It carries one tensor of a stage's state, in either direction.

    From the driver it is an initial or resumed weight, buffer or piece of optimizer state. From a stage it is a part of
    a segment's anchor, or of the optimizer state, for the checkpoint of `round`. `part` says which of the two it is,
    and `key` is the optimizer's name for it.
    """

    part: Literal["weight", "optimizer"]
    name: str
    key: str = ""
    round: int = 0


class Begin(Message, frozen=True, kw_only=True, tag="begin"):
    """The stage is to start at this version once all `tensors` pieces of state are here. Some may be under way."""

    tensors: int
    version: int


class Go(Message, frozen=True, kw_only=True, tag="go"):
    """It goes to the first stages, which may inject now: every stage of the run holds its state."""


class RoundOpenedMessage(Message, frozen=True, kw_only=True, tag="round_opened"):
    """It goes to a cluster's last stage, which is to stamp this round on the next update."""

    round: int


class RoundCommittedMessage(Message, frozen=True, kw_only=True, tag="round_committed"):
    """Every ring of the round has finished, so the stage is to merge it. With `save` it is to send the anchor and the
    optimizer state then."""

    round: int
    save: bool = False


class Drain(Message, frozen=True, kw_only=True, tag="drain"):
    """It goes to a first stage, which is to inject nothing beyond the current update's micro-batches."""


class FinishRounds(Message, frozen=True, kw_only=True, tag="finish_rounds"):
    """It goes to every stage of a drained cluster, which is to contribute to all rounds up to `up_to` after `updates`
    updates.

    It may come again with a later round. After the `final` one all progress is in the anchor.
    """

    up_to: int
    updates: int
    final: bool


class Evaluate(Message, frozen=True, kw_only=True, tag="evaluate"):
    """It goes to a first stage, which is to pass the held-out set through the stages."""

    evaluation: int
    batches: int


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

    finished: int = 0
    sent_s: float | None = None
    echo_s: float | None = None
    heard_s: float | None = None


# stage → driver


class StageStarted(Message, frozen=True, kw_only=True, tag="started"):
    """The stage holds its state and has entered the pipeline. `process_bytes` is its resident memory then."""

    process_bytes: int


class Updated(Message, frozen=True, kw_only=True, tag="updated"):
    """The stage has made an update.

    Only a last stage sends `losses`: one for each micro-batch, in order. `spent` is the stage's ledger so far, in
    seconds by state.
    """

    update: int
    staleness: tuple[int, ...]
    losses: tuple[float, ...]
    lr: float
    spent: dict[str, float] = {}  # noqa: RUF012 - each message gets a dict of its own


class WindowTuned(Message, frozen=True, kw_only=True, tag="window_tuned"):
    """A first stage has changed its window. `round_trip_s` is the round trip without waiting for stages, and `pace_s`
    is what the slowest part of the pipeline takes for a micro-batch."""

    window: int
    round_trip_s: float
    pace_s: float


class BackwardSplit(Message, frozen=True, kw_only=True, tag="backward_split"):
    """A stage splits its backward from now on, or does not.

    It decides by the seconds that it measured: of a whole backward, of both parts of a split one, and from one
    micro-batch to the next. `refused` says why it can never split.
    """

    splits: bool
    refused: str = ""
    whole_s: float = 0.0
    input_s: float = 0.0
    weight_s: float = 0.0
    period_s: float = 0.0


class ContributionFinishedMessage(Message, frozen=True, kw_only=True, tag="contribution_finished"):
    """The stage has taken its snapshot after `update` updates, and contributed to a round with it."""

    round: int
    update: int


class RingFinishedMessage(Message, frozen=True, kw_only=True, tag="ring_finished"):
    """One of the stage's rings holds the round's average."""

    round: int
    ring: int


class RoundMerged(Message, frozen=True, kw_only=True, tag="round_merged"):
    """The stage has merged a round, which moved its anchor."""

    round: int


class StateSent(Message, frozen=True, kw_only=True, tag="state_sent"):
    """The stage has sent all its `tensors` pieces of the checkpoint of `round`."""

    round: int
    tensors: int


class Drained(Message, frozen=True, kw_only=True, tag="drained"):
    """A first stage has nothing in flight and has made its last update."""

    micro_batches: int
    updates: int


class RoundsFinished(Message, frozen=True, kw_only=True, tag="rounds_finished"):
    """No round is pending: the stage's weights are the anchor. `spent` is as in Updated."""

    up_to: int
    spent: dict[str, float] = {}  # noqa: RUF012 - each message gets a dict of its own


class EvaluationFinished(Message, frozen=True, kw_only=True, tag="evaluated"):
    """It carries (sum, count) over the held-out set, of the loss and of each metric in the job's order."""

    evaluation: int
    loss: tuple[float, int]
    metrics: tuple[tuple[float, int], ...]


class Spans(Message, frozen=True, kw_only=True, tag="spans"):
    """It carries a piece of the stage's timeline. One entry of each column is a span; times are by the stage's clock.

    reports.py says what `lanes` and `kinds` are. A number of -1 means that there is none. `dropped` is how many spans
    were beyond the limit so far.
    """

    lanes: tuple[int, ...]
    kinds: tuple[str, ...]
    numbers: tuple[int, ...]
    began_s: tuple[float, ...]
    ended_s: tuple[float, ...]
    dropped: int


class ImitationLateness(Message, frozen=True, kw_only=True, tag="imitated"):
    """It says how late this machine has been so far: `late_s` of `imitated_s` of computing since the first update, and
    `links_late_s` in all `messages` that passed emulated links."""

    late_s: float
    imitated_s: float
    links_late_s: float
    messages: int


class MemoryPeaks(Message, frozen=True, kw_only=True, tag="held"):
    """It carries the most bytes that the stage's tensors have taken so far, each part at its own peak (memory.py)."""

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
    """The codec of every endpoint of a run."""
    return Codec(KINDS)
