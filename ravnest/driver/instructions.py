"""What the state machine of a run asks for: messages to stages, checkpoints, and what is recorded. Plain data.

In: decisions of `RunControl`. Out: instructions that the driver's loop carries out, and `RunPhase`, which says where a
run is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from ravnest.stage import messages as m
from ring_allreduce.transport import Message


class RunPhase(Enum):
    """The phase that a run is in."""

    TRAINING = auto()
    DRAINING = auto()
    """No micro-batch is injected any more; those in flight are finished."""
    FINISHING = auto()
    """The last round is averaged, and its anchor saved."""
    EVALUATING = auto()
    """The held-out set passes through the anchor."""
    DONE = auto()


@dataclass(frozen=True)
class SendToStage:
    """Send `message` to the stage named `peer`."""

    peer: str
    message: Message


@dataclass(frozen=True)
class EnterPhase:
    """The run has entered another phase."""

    phase: RunPhase


@dataclass(frozen=True)
class BeginCheckpoint:
    """The stages are going to send their state as of `round`."""

    round: int
    samples: int
    """Samples of the fleet behind the round's anchor."""
    updates: Mapping[str, int]
    """The updates of each cluster at its snapshot for the round; of a lost one, at the last that was averaged."""
    lost: tuple[str, ...] = ()
    """The clusters that are lost, of which there is no optimizer state."""
    unmade: Mapping[str, int] = field(default_factory=dict)
    """Of the updates of each cluster that came during the run: those from which its schedule began."""


@dataclass(frozen=True)
class CommitCheckpoint:
    """Every stage has sent its state as of `round`: the checkpoint is to be committed."""

    round: int


@dataclass(frozen=True)
class AbandonCheckpoint:
    """The checkpoint of `round` lacks what a lost stage had to send: it is not to be committed."""

    round: int


@dataclass(frozen=True)
class ReformRings:
    """An epoch of membership begins: divide these rings (name → members) anew, and tell every member.

    Every round up to `committed` is committed. `lost` names the stages that are out. `following` names the clusters
    that do not train yet, whose stages cannot keep a segment for checkpoints.
    """

    epoch: int
    rings: Mapping[str, tuple[str, ...]]
    committed: int
    lost: tuple[str, ...]
    following: tuple[str, ...] = ()


@dataclass(frozen=True)
class EpochBegan:
    """The rounds go on in this epoch; all that are not committed or `kept` start again."""

    epoch: int
    kept: tuple[int, ...]


@dataclass(frozen=True)
class FindDonors:
    """These stages of `cluster` have joined the rings, and need the anchor of a member."""

    cluster: str
    stages: tuple[str, ...]


@dataclass(frozen=True)
class HandOver:
    """The checkpoint of `round` is written: send its state to the stages of `cluster`, which goes on at `updates`."""

    cluster: str
    round: int
    updates: int


@dataclass(frozen=True)
class RecordJoinFailed:
    """A cluster that did not train yet has left the run again, with `stage`, for this `reason`."""

    cluster: str
    stage: str
    reason: str


@dataclass(frozen=True)
class RecordClusterTrains:
    """All stages of a cluster that had joined hold the anchor, and it trains now, after `round`."""

    cluster: str
    round: int


@dataclass(frozen=True)
class RecordClusterLost:
    """A cluster is lost with `stage`, for this `reason`, and at most `samples` that it had trained on.

    They were in no committed round yet. Of a round under way that is whole somewhere, they count after all.
    """

    cluster: str
    stage: str
    reason: str
    samples: int
    left: tuple[str, ...]
    """The clusters that go on."""
    with_notice: bool = False
    """Whether it left because it was asked to."""
    standing_by: tuple[str, ...] = ()
    """Its other stages, where they keep their state to join again."""


@dataclass(frozen=True)
class RecordProgressHandedOn:
    """A cluster that leaves has handed on to the cluster `to` what it has made and no round has: so many `samples`."""

    cluster: str
    to: str
    samples: int


@dataclass(frozen=True)
class RecordRoundOpened:
    """A round has been opened. `final` says whether it is the one that ends the run."""

    round: int
    final: bool


@dataclass(frozen=True)
class RecordRoundCommitted:
    """A round has been committed, when the fleet had trained on so many samples."""

    round: int
    samples: int
    averaged: Mapping[str, int] = field(default_factory=dict, compare=False)
    """By cluster: the updates of it that are in the anchor now."""


@dataclass(frozen=True)
class RecordEvaluation:
    """An evaluation has come, as sums that the last stage reported.

    `final` says whether it is of the last anchor. `samples` is what the fleet had trained on when it was ordered.
    """

    samples: int
    evaluated: m.EvaluationFinished
    final: bool


Instruction = (
    SendToStage
    | EnterPhase
    | BeginCheckpoint
    | CommitCheckpoint
    | AbandonCheckpoint
    | ReformRings
    | EpochBegan
    | FindDonors
    | HandOver
    | RecordClusterLost
    | RecordJoinFailed
    | RecordClusterTrains
    | RecordProgressHandedOn
    | RecordRoundOpened
    | RecordRoundCommitted
    | RecordEvaluation
)
