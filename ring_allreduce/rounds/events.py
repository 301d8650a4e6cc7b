"""Events and instructions of the round machines: plain data, sans-I/O.

Events say what happened to rounds and to those who make them, in the past tense. Instructions say what the machines ask
for, in the imperative. A round is opened, contributed to, finished, committed and merged. A cluster is the unit of
loss: all its members leave their rings at once. In a group each member is a cluster of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass

RoundKey = tuple[str, int]
"""The name of a ring and the number of a round."""

HandOn = tuple[str, int, str, tuple[str, ...]]
"""The tuple (ring, round, holder, to): `holder` sends the average of that ring and round to `to`, who lack it."""


# What the owner hears.


@dataclass(frozen=True)
class SamplesReported:
    """`cluster` has trained on `samples` samples since its start (a running total, not a difference)."""

    cluster: str
    samples: int


@dataclass(frozen=True)
class FinishRequested:
    """The end of the run was requested: one last round opens, and then no more."""


@dataclass(frozen=True)
class RoundRequested:
    """A round is needed now, though the fleet has not made `average_every` samples since the last."""


@dataclass(frozen=True)
class MemberFinished:
    """`member` holds the whole average of `ring` in `round`, made in `epoch` (None if there is only one epoch).

    `form` says in words what it averages; it is empty where that is given beforehand.
    """

    round: int
    member: str
    ring: str
    epoch: int | None = None
    form: str = ""


@dataclass(frozen=True)
class MemberLost:
    """`member` died, left, stayed silent or lied; `reason` says which.

    `spoils`: not all members were sent the same, so averages that are whole may differ, and are made again without it.
    `returns`: its cluster is about to join again, and no round goes on before it has, or is given up.
    """

    member: str
    reason: str
    spoils: bool = False
    returns: bool = False


@dataclass(frozen=True)
class ReturnGivenUp:
    """`cluster`, which was to return, is not waited for any more."""

    cluster: str


@dataclass(frozen=True)
class MemberSuspected:
    """Nothing came from `member` in `epoch` that should have come, or what came cannot be averaged (`refused`)."""

    epoch: int
    member: str
    reason: str
    refused: bool = False


@dataclass(frozen=True)
class MemberHeld:
    """`member` has stopped its rings and is in `epoch`.

    `holding` are the averages that are whole there and not committed. `form` says in words what it averages; it is
    empty when the member has contributed to nothing yet.
    """

    epoch: int
    member: str
    holding: tuple[RoundKey, ...] = ()
    form: str = ""


@dataclass(frozen=True)
class ClusterJoined:
    """`cluster` wants to take part; `members` has its members and the rings of each."""

    cluster: str
    members: Mapping[str, tuple[str, ...]]


MembershipEvent = MemberFinished | MemberLost | ReturnGivenUp | MemberSuspected | MemberHeld | ClusterJoined
OwnerEvent = SamplesReported | FinishRequested | RoundRequested | MembershipEvent


# What the owner orders. A member takes Reform, Resume and CommitRound as its events.


@dataclass(frozen=True)
class OpenRound:
    """Tell every cluster to contribute to `round`. After a `final` round no other opens."""

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
    """Tell every member to stop and to answer what it holds: `epoch` begins with these `rings` (name → members).

    All rounds up to `committed` are committed. `lost` has who is out since the epoch before, and why.
    """

    epoch: int
    rings: Mapping[str, tuple[str, ...]]
    committed: int
    lost: Mapping[str, str]


@dataclass(frozen=True)
class Resume:
    """Tell every member that all are in `epoch`.

    Rounds that are not `kept` start again, from what was contributed. `first_rounds` has the first round that each
    member takes part in.
    """

    epoch: int
    kept: tuple[int, ...]
    hand_on: tuple[HandOn, ...]
    first_rounds: Mapping[str, int]


@dataclass(frozen=True)
class LeaveOut:
    """Tell `member`, if it can hear, that `epoch` begins without it.

    `refused` is true if that is because of what it contributed.
    """

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


# What a member's machines ask for.


@dataclass(frozen=True)
class MergeRound:
    """Merge the averages of all this member's rings of `round`, at the next update boundary."""

    round: int


@dataclass(frozen=True)
class ReportFinished:
    """Tell the owner that the average of `ring` in `round` is whole here, in `epoch`."""

    ring: str
    round: int
    epoch: int


@dataclass(frozen=True)
class ReformRings:
    """Abandon what is under way in the rings, and take these members and this epoch."""

    epoch: int
    rings: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class ReportHeld:
    """Tell the owner that this member has stopped, is in `epoch`, and holds these averages."""

    epoch: int
    holding: tuple[RoundKey, ...]


@dataclass(frozen=True)
class RestartRound:
    """Contribute again to `round`, in all rings, what was contributed. An average of it is forgotten."""

    round: int


@dataclass(frozen=True)
class SendAverage:
    """Hand on the whole average of `ring` in `round` to the members `to`."""

    ring: str
    round: int
    to: tuple[str, ...]


@dataclass(frozen=True)
class AcceptAverage:
    """Take the average of `ring` in `round` from `holder` and nobody else."""

    ring: str
    round: int
    holder: str


EpochInstruction = MergeRound | ReportFinished | ReformRings | ReportHeld | RestartRound | SendAverage | AcceptAverage
