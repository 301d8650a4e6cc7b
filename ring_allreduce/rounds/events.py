"""What happens to rounds and to those who make them, and what the round machines ask for. Plain data, sans-I/O.

Events are in the past tense, instructions in the imperative. A round is opened, contributed to, finished, committed and
merged. A cluster is what is lost together: all its members leave their rings at once. In a group each member is a
cluster of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass

RoundKey = tuple[str, int]
"""The name of a ring and the number of a round."""

HandOn = tuple[str, int, str, tuple[str, ...]]
"""(ring, round, holder, to): `holder` sends the average of that ring and round to the members `to`, who miss it."""


# What the owner hears.


@dataclass(frozen=True)
class SamplesReported:
    """`cluster` has trained on `samples` samples since its start (a running total, not a difference)."""

    cluster: str
    samples: int


@dataclass(frozen=True)
class FinishRequested:
    """The run is to end: one last round, then no more."""


@dataclass(frozen=True)
class MemberFinished:
    """`member` holds the whole average of `ring` in `round`, made in `epoch` (None: there is but one).

    `form`: what it averages, in words; empty where that is given beforehand.
    """

    round: int
    member: str
    ring: str
    epoch: int | None = None
    form: str = ""


@dataclass(frozen=True)
class MemberLost:
    """`member` died, left or stayed silent; `reason` says which."""

    member: str
    reason: str


@dataclass(frozen=True)
class MemberSuspected:
    """In `epoch` nothing came from `member` that should have come, or (`refused`) what came cannot be averaged."""

    epoch: int
    member: str
    reason: str
    refused: bool = False


@dataclass(frozen=True)
class MemberHeld:
    """`member` has stopped its rings and is in `epoch`. `holding`: the averages that are whole there, not committed.

    `form`: what it averages, in words; empty when it has contributed to nothing yet.
    """

    epoch: int
    member: str
    holding: tuple[RoundKey, ...] = ()
    form: str = ""


@dataclass(frozen=True)
class ClusterJoined:
    """`cluster` wants to take part; `members`: its members and the rings of each."""

    cluster: str
    members: Mapping[str, tuple[str, ...]]


MembershipEvent = MemberFinished | MemberLost | MemberSuspected | MemberHeld | ClusterJoined
OwnerEvent = SamplesReported | FinishRequested | MembershipEvent


# What the owner orders. A member takes Reform, Resume and CommitRound as its events.


@dataclass(frozen=True)
class OpenRound:
    """Tell every cluster to contribute to `round`. After a `final` one no other opens."""

    round: int
    epoch: int
    final: bool


@dataclass(frozen=True)
class CommitRound:
    """Tell every member that it may merge `round`: all rings have finished it everywhere."""

    round: int
    epoch: int


@dataclass(frozen=True)
class FailRun:
    """End the run; `reason` is one line that names who was lost or what was contradicted."""

    reason: str


@dataclass(frozen=True)
class Reform:
    """To every member: stop, `epoch` begins with these `rings` (name → members); answer with what you hold.

    `committed`: all rounds up to it are. `lost`: who is out since the epoch before, and why.
    """

    epoch: int
    rings: Mapping[str, tuple[str, ...]]
    committed: int
    lost: Mapping[str, str]


@dataclass(frozen=True)
class Resume:
    """To every member: all are in `epoch`. Rounds that are not `kept` start again, from what was contributed.

    `first_rounds`: member → the first round that it takes part in.
    """

    epoch: int
    kept: tuple[int, ...]
    hand_on: tuple[HandOn, ...]
    first_rounds: Mapping[str, int]


@dataclass(frozen=True)
class LeaveOut:
    """Tell `member`, if it can hear, that `epoch` begins without it. `refused`: for what it contributed."""

    member: str
    epoch: int
    reason: str
    refused: bool


MembershipInstruction = CommitRound | FailRun | Reform | Resume | LeaveOut
OwnerInstruction = OpenRound | MembershipInstruction


# What happens at a member.


@dataclass(frozen=True)
class RoundContributed:
    """This member has contributed to `round`, in all its rings."""

    round: int


@dataclass(frozen=True)
class RingFinished:
    """This member holds the whole average of `ring` in `round`."""

    ring: str
    round: int


@dataclass(frozen=True)
class RoundCommitted:
    """The owner has committed `round`."""

    round: int


MemberEvent = RingFinished | RoundCommitted


# What a member's machines ask for.


@dataclass(frozen=True)
class MergeRound:
    """Merge the averages of all this member's rings of `round`, at the next update boundary."""

    round: int


@dataclass(frozen=True)
class ReportFinished:
    """Tell the owner: (ring, round) is whole here, in `epoch`."""

    ring: str
    round: int
    epoch: int


@dataclass(frozen=True)
class ReformRings:
    """Abandon what is under way in the rings; their members and the epoch are these now."""

    epoch: int
    rings: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class ReportHeld:
    """Tell the owner: stopped, in `epoch`, holding these averages."""

    epoch: int
    holding: tuple[RoundKey, ...]


@dataclass(frozen=True)
class RestartRound:
    """Contribute again to `round`, in all rings, what was contributed; an average of it is forgotten."""

    round: int


@dataclass(frozen=True)
class SendAverage:
    """Hand on the whole average of (ring, round)."""

    ring: str
    round: int
    to: tuple[str, ...]


@dataclass(frozen=True)
class AcceptAverage:
    """Take the average of (ring, round) from `holder` and nobody else."""

    ring: str
    round: int
    holder: str


EpochInstruction = MergeRound | ReportFinished | ReformRings | ReportHeld | RestartRound | SendAverage | AcceptAverage
