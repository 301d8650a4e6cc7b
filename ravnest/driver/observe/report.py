"""What a run tells whoever watches it: an event for each thing that happens, and the result at the end.

The module fixes the schema of the events, which are also lines of metrics.jsonl (metrics_file.py). Counts are of the
whole fleet unless a cluster is named; losses are in nats for cross-entropy, and None where there is none yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from ravnest.driver.observe.place_events import (
    ClusterReplannedEvent,
    NodeJoinedEvent,
    NodeSlowEvent,
    NodesSharedOutEvent,
    PlannedAnewEvent,
    ProgressHandedOnEvent,
    SpareWarmEvent,
)
from ravnest.driver.observe.stage_figures import StageFigures as StageFigures
from ravnest.driver.observe.stage_figures import StageMemory as StageMemory
from ravnest.driver.observe.stage_figures import TimeShares as TimeShares
from ravnest.errors import InvalidInput
from ravnest.formatting import json_value


@dataclass(frozen=True)
class RunLimit:
    """An earlier end than the job's own: whichever limit is reached first. None: there is no such limit.

    The schedule of learning rates still counts with the job's own end. A run that this limit has ended can be resumed.
    """

    samples: int | None = None
    """Samples of the whole fleet."""
    seconds: float | None = None
    """Seconds of training, by this machine's clock."""

    def __post_init__(self) -> None:
        """Raises InvalidInput for a limit that no run can have."""
        if self.samples is not None and self.samples < 1:
            raise InvalidInput(f"must be at least 1, not {self.samples}", key="limit.samples")
        if self.seconds is not None and not 0 < self.seconds < float("inf"):
            raise InvalidInput(f"must be a finite number above 0, not {self.seconds:g}", key="limit.seconds")


NO_LIMIT = RunLimit()


PHASES_BEFORE_TRAINING = ("preparing", "starting Ray", "placing stages", "handing out weights")


@dataclass(frozen=True)
class PhaseEvent:
    """The run has entered a phase: "preparing", "starting Ray", "placing stages", "handing out weights", "training",
    "draining", "last round", "evaluating" or "saving". `detail` says more about it in words.
    """

    name: str
    detail: str = ""


@dataclass(frozen=True)
class ClusterProgress:
    """How far one cluster has come.

    `samples`, `updates` and `rounds_merged` count from the run's first start; the first two count what the cluster has
    made, also of one that came during the run. `samples_per_s` is the rate of the last 15 s, or of the last two updates
    where these took longer. `loss` is the mean training loss since the event before,
    and `max_staleness` the highest that was seen, in updates.
    """

    name: str
    samples: int
    samples_per_s: float
    loss: float | None
    max_staleness: int
    updates: int
    rounds_merged: int


@dataclass(frozen=True)
class ProgressEvent:
    """How far the fleet has come; it is sent once a second and at the end.

    `elapsed_s` counts from the beginning of training, in a run that was resumed from that of this session. The run ends
    at `total_samples` or at `stop_s` of the same clock, whichever comes first; None: it does not end by this.
    `session_samples` are those of `samples` that were made in `elapsed_s`; None in files of older versions.
    """

    elapsed_s: float
    samples: int
    total_samples: int | None
    clusters: tuple[ClusterProgress, ...]
    stop_s: float | None = None
    session_samples: int | None = None


@dataclass(frozen=True)
class EvaluatedEvent:
    """The held-out set has been evaluated: its mean loss, and the job's metrics by name.

    `samples` is what the fleet had trained on when the evaluation was ordered. `final` says whether the anchor after
    the last round was evaluated; otherwise it is the weights of the evaluating cluster.
    """

    samples: int
    loss: float
    metrics: Mapping[str, float]
    final: bool


@dataclass(frozen=True)
class Hop:
    """A way from one member of a ring to the next, and the bytes per second at which the sender's own part came."""

    sender: str
    receiver: str
    bytes_per_s: float


@dataclass(frozen=True)
class RoundCommittedEvent:
    """A round of averaging has been committed, and every member merges it.

    `round` counts from the run's first start, and `samples` is what the fleet had trained on. `slowest_hop` is None
    where nobody's part was large enough to be timed.
    """

    round: int
    samples: int
    seconds: float | None = None
    """Seconds since the round was opened."""
    slowest_hop: Hop | None = None
    received: Mapping[str, int] = field(default_factory=dict)
    """By stage: the bytes that came to it for the average, without headers. Where a ring was begun again, as after a
    loss, what came since then counts; a stage whose average was whole while the rings were made anew may be missing."""


@dataclass(frozen=True)
class CheckpointWrittenEvent:
    """A checkpoint is complete on disk: the folder `path`, with the state as of the committed `round`."""

    path: Path
    round: int


@dataclass(frozen=True)
class CheckpointRefusedEvent:
    """The disk has refused the checkpoint of the committed `round`, for this `reason`. What was written of it is
    removed, the checkpoints before it stay, and training goes on."""

    round: int
    reason: str


@dataclass(frozen=True)
class StageSuspectedEvent:
    """Nothing has been heard of a `stage` on `node` for `silent_s`; it is taken for lost after `deadline_s`.

    `heard_again` takes that back: it was silent for so long, and lives.
    """

    stage: str
    node: str
    silent_s: float
    deadline_s: float
    heard_again: bool = False


@dataclass(frozen=True)
class ClusterLostEvent:
    """A cluster has left the run, because its `stage` on `node` was lost. The others go on without it.

    At most `samples` are lost with it: those that it had trained on and that were in no committed round. Of a round
    under way that is whole somewhere they count after all. `left` names the clusters that go on. A cluster that left
    `with_notice` was asked to, and has lost nothing. `silent_s`: how long nothing had been heard of the stage, None
    where it never was.
    """

    cluster: str
    stage: str
    node: str
    reason: str
    samples: int
    left: tuple[str, ...]
    with_notice: bool = False
    silent_s: float | None = None


@dataclass(frozen=True)
class TakenOverEvent:
    """The driver of a run was gone, and this one goes on with its stages: nothing was started anew.

    `clusters` train on, and `missing` are started anew. The fleet had come to this `round` and these `samples`,
    `elapsed_s` seconds after the beginning of training, by what the driver before had written down.
    """

    clusters: tuple[str, ...]
    missing: tuple[str, ...]
    round: int
    samples: int
    elapsed_s: float


@dataclass(frozen=True)
class ClusterReplacedEvent:
    """A cluster that had been lost trains again, on these nodes (by stage), from the anchor after `round`.

    `seconds` lie between its loss and its new beginning. `samples` is what was lost with it, as ClusterLostEvent says.
    A `new` cluster was not lost: the run had none of its name, and `seconds` count from the decision to make it.
    """

    cluster: str
    nodes: Mapping[str, str]
    round: int
    seconds: float
    samples: int
    new: bool = False


@dataclass(frozen=True)
class StageRestoredEvent:
    """A stage of a cluster that was started anew holds today's anchor, `seconds` after it had joined the rings.

    `sources` gives the bytes by where they came from: stages, "checkpoint", or "itself" where it had kept them.
    """

    stage: str
    sources: Mapping[str, int]
    seconds: float


@dataclass(frozen=True)
class ReplacementFailedEvent:
    """A lost cluster could not be started anew. The next try is in `again_s` seconds; None: it stays out of the run."""

    cluster: str
    reason: str
    again_s: float | None


@dataclass(frozen=True)
class RestartedEvent:
    """No cluster was left that trained, or another plan makes more, for this `reason`: the run begins again in `wait_s`
    seconds, from `checkpoint`. At most `samples` are lost: those on which it had trained since.

    An empty `checkpoint`: there is none yet, and it begins from the start. `planned_anew` says that the run goes on by
    another plan, for the nodes that are there.
    """

    reason: str
    checkpoint: str
    wait_s: float
    planned_anew: bool
    samples: int = 0


@dataclass(frozen=True)
class WaitsForNodesEvent:
    """The run is to begin again and cannot, for this `reason`: it waits for nodes, for `at_most_s` seconds."""

    reason: str
    at_most_s: float


@dataclass(frozen=True)
class FailedEvent:
    """The run has ended without its result, for this `reason`. It is the last line of metrics.jsonl, and told to no
    observer: whoever has started the run gets the error itself. `at_once`: no error, but the user has ended it so."""

    reason: str
    at_once: bool = False


@dataclass(frozen=True)
class NoticeEvent:
    """Something that the user should know, but need not act on at once."""

    text: str


RunEvent = (
    PhaseEvent
    | ProgressEvent
    | EvaluatedEvent
    | RoundCommittedEvent
    | CheckpointWrittenEvent
    | CheckpointRefusedEvent
    | StageSuspectedEvent
    | ClusterLostEvent
    | ClusterReplacedEvent
    | TakenOverEvent
    | ClusterReplannedEvent
    | NodeJoinedEvent
    | NodeSlowEvent
    | NodesSharedOutEvent
    | PlannedAnewEvent
    | ProgressHandedOnEvent
    | SpareWarmEvent
    | StageRestoredEvent
    | ReplacementFailedEvent
    | RestartedEvent
    | WaitsForNodesEvent
    | FailedEvent
    | NoticeEvent
)


class Observer(Protocol):
    """Whoever watches a run."""

    def on(self, event: RunEvent) -> None:
        """Is called with each event, in the thread that called `run`, and must return soon."""
        ...


@dataclass(frozen=True)
class RunResult:
    """What came of a run.

    Counts are of the run from its first start. `held_out_loss` and `metrics` are of the final weights, on the held-out
    set; `baselines` are losses on the same set to compare with. `seconds` is the training time of this session, and
    `samples_per_s` its rate. Staleness is in updates. `stopped_early` says that the user ended the run, which can then
    be resumed. `encrypted` names the mode in which its speed was measured.
    """

    out_dir: Path
    weights_path: Path
    metrics_path: Path
    checkpoint_path: Path
    loss_curve_path: Path | None
    held_out_loss: float | None
    metrics: Mapping[str, float]
    baselines: Mapping[str, float]
    samples: int
    updates: int
    rounds: int
    seconds: float
    samples_per_s: float
    max_staleness: int
    mean_staleness: float
    sample_text: str | None
    stopped_early: bool
    stages: tuple[StageFigures, ...] = ()
    trace_path: Path | None = None
    encrypted: bool = False
    windows: Mapping[str, int] = field(default_factory=dict)
    """By cluster: the window at the end of the run."""
    averaging_s: float | None = None
    """Seconds from the opening of a round to its commit: the mean of this session's rounds, except the last one, which
    ends the run. None where there was no other."""
    session_samples: int | None = None
    """Of a run that was resumed: how many of `samples` were made since then, in `seconds`. None for a new run."""


_KINDS = {
    PhaseEvent: "phase",
    ProgressEvent: "progress",
    EvaluatedEvent: "evaluated",
    RoundCommittedEvent: "round",
    CheckpointWrittenEvent: "checkpoint",
    CheckpointRefusedEvent: "not_saved",
    StageSuspectedEvent: "suspected",
    ClusterLostEvent: "lost",
    ClusterReplacedEvent: "replaced",
    TakenOverEvent: "taken_over",
    ClusterReplannedEvent: "replanned",
    NodeJoinedEvent: "joined",
    NodeSlowEvent: "slow",
    NodesSharedOutEvent: "shared_out",
    PlannedAnewEvent: "planned_anew",
    ProgressHandedOnEvent: "handed_on",
    SpareWarmEvent: "warm",
    StageRestoredEvent: "restored",
    ReplacementFailedEvent: "not_replaced",
    RestartedEvent: "restarted",
    WaitsForNodesEvent: "waits",
    FailedEvent: "failed",
    NoticeEvent: "notice",
}


EVENT_TYPES: Mapping[str, type[RunEvent]] = {kind: event for event, kind in _KINDS.items()}
"""By `kind` in metrics.jsonl: the events that stand there."""


def kind_of(event: RunEvent) -> str:
    """The event's `kind` in metrics.jsonl."""
    return _KINDS[type(event)]


def as_plain(value: RunEvent | RunResult) -> dict[str, object]:
    """The fields as JSON has them: paths become strings, and numbers that are not finite become null."""
    return {name: json_value(item) for name, item in asdict(value).items()}
