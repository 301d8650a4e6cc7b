"""What the state machine of a collaboration's steps (step_owner.py) is told, and what it has others do.

In: fields. Out: events in the past tense, and instructions in the imperative.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PeerBecameReady:
    """A peer holds the weights of `step` and computes on them."""

    peer: str
    step: int


@dataclass(frozen=True)
class ProgressCame:
    """A peer has `samples` that it has not sent, of the step `step`."""

    peer: str
    step: int
    samples: int
    samples_per_s: float
    micro_batch: int
    every_s: float


@dataclass(frozen=True)
class ContributionCame:
    """A peer's gradient over `samples` samples has come whole and valid, and was added to the sum."""

    peer: str
    step: int
    samples: int


@dataclass(frozen=True)
class ContributionRefused:
    """What a peer sent as its gradient cannot be one; nothing of it was added."""

    peer: str
    reason: str


@dataclass(frozen=True)
class PeerLeft:
    """A peer's connection has ended, whoever ended it."""

    peer: str


@dataclass(frozen=True)
class TimePassed:
    """The clock has moved."""


@dataclass(frozen=True)
class MeansMade:
    """All parts of the mean that MakeMeans asked for are there."""


@dataclass(frozen=True)
class BegunAgain:
    """A machine that added up a part is lost: what peers have given to this step, they give again."""


Event = (
    PeerBecameReady
    | ProgressCame
    | ContributionCame
    | ContributionRefused
    | PeerLeft
    | TimePassed
    | MeansMade
    | BegunAgain
)


@dataclass(frozen=True)
class OpenStep:
    """Tell each of these peers to send what it has as soon as it has so many samples. `most_next`: how many of them it
    may compute for the next step before that one is opened, where steps are delayed."""

    step: int
    stops: Mapping[str, int]
    most_next: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class CollectOn:
    """Tell peers to go on computing for the same step: too little has come. `peer`: only this one; None: all."""

    step: int
    peer: str | None = None


@dataclass(frozen=True)
class CommitStep:
    """Divide the sum of the step by its samples, apply it, and send it to everyone. `samples` by peer."""

    step: int
    samples: Mapping[str, int]


@dataclass(frozen=True)
class PutOut:
    """End a peer's connection, and tell it why."""

    peer: str
    reason: str


@dataclass(frozen=True)
class MakeMeans:
    """Have all machines make the means of their parts; nothing counts for the step any more. `samples` by peer."""

    step: int
    samples: Mapping[str, int]


Instruction = OpenStep | CollectOn | CommitStep | PutOut | MakeMeans
