"""What stages tell the driver: the kinds of messages.py that only it receives."""

from ring_allreduce.transport import Message


class Started(Message, frozen=True, kw_only=True, tag="started"):
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


class SnapshotTaken(Message, frozen=True, kw_only=True, tag="snapshot_taken"):
    """The stage has contributed to a round, after `update` updates."""

    round: int
    update: int


class RingFinished(Message, frozen=True, kw_only=True, tag="ring_finished"):
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


class Evaluated(Message, frozen=True, kw_only=True, tag="evaluated"):
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


class Imitated(Message, frozen=True, kw_only=True, tag="imitated"):
    """How late this machine has been so far. `late_s` of `imitated_s` of computing, since the first update;
    `links_late_s` over `messages` that passed emulated links."""

    late_s: float
    imitated_s: float
    links_late_s: float
    messages: int


class Held(Message, frozen=True, kw_only=True, tag="held"):
    """The most that the stage's tensors have taken so far, each part at its own peak: runtime/memory.py names them."""

    tensor_bytes: dict[str, int]
