"""The round machine: when a round opens, when it is committed, when a stage merges it. Sans-I/O.

Design §7. `RoundOwner` runs where membership is owned (the driver of a run, or the rendezvous of a group), a
`RoundMember` in each stage. Neither knows vectors, sockets or clocks. Opening is by samples, and held back only where
the members' lag limit would let nobody contribute: rounds that nobody can reach would but queue up. Membership is
fail-stop: one lost member fails the run.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ring_allreduce.errors import InvalidInput


@dataclass(frozen=True)
class SamplesReported:
    """`cluster` has trained on `samples` samples since its start (a running total, not a difference)."""

    cluster: str
    samples: int


@dataclass(frozen=True)
class MemberFinished:
    """`member` holds the whole average of `ring` in `round`."""

    round: int
    member: str
    ring: str


@dataclass(frozen=True)
class MemberLost:
    """`member` died, left or stayed silent; `reason` says which."""

    member: str
    reason: str


@dataclass(frozen=True)
class FinishRequested:
    """The run is to end: one last round, then no more."""


OwnerEvent = SamplesReported | MemberFinished | MemberLost | FinishRequested


@dataclass(frozen=True)
class OpenRound:
    """Tell every cluster to contribute to `round`. After a `final` one no other opens."""

    round: int
    epoch: int
    final: bool


@dataclass(frozen=True)
class CommitRound:
    """Tell every stage that it may merge `round`: all rings have finished it everywhere."""

    round: int
    epoch: int


@dataclass(frozen=True)
class FailRun:
    """End the run; `reason` is one line that names who was lost or what was contradicted."""

    reason: str


OwnerInstruction = OpenRound | CommitRound | FailRun


class RoundOwner:
    """Numbers the rounds from 1, opens them by samples, commits each over all rings at once and in order."""

    def __init__(
        self, rings: Mapping[str, Sequence[str]], average_every: int, epoch: int = 0, *, max_lag: int = 1
    ) -> None:
        """`rings`: name → members. `average_every`: samples of the whole fleet that make one round.

        `max_lag`: rounds, that of the members: at most max_lag + 1 are open at once, the last of them the one at
        which members wait; the final round opens whatever is open. Raises InvalidInput.
        """
        if average_every < 1:
            raise InvalidInput(f"average_every must be at least 1 sample, got {average_every}")
        if max_lag < 1:
            raise InvalidInput(f"max_lag must be at least 1 round, got {max_lag}")
        for ring, members in rings.items():
            if not members or len(set(members)) != len(members):
                raise InvalidInput(f"ring {ring!r} needs at least one member and no member twice: {list(members)}")
        self._pairs = frozenset((ring, member) for ring, members in rings.items() for member in members)
        self._average_every = average_every
        self._max_lag = max_lag
        self._samples: dict[str, int] = {}
        self._next_open_at = average_every
        self._opened = 0
        self._committed = 0
        self._awaited: dict[int, set[tuple[str, str]]] = {}
        self._final = False
        self._failed = False
        self.epoch = epoch

    @property
    def opened(self) -> int:
        """The newest round that was opened, 0 before the first."""
        return self._opened

    @property
    def committed(self) -> int:
        """The newest round that was committed, 0 before the first."""
        return self._committed

    @property
    def finished(self) -> bool:
        """Whether the end was requested and every opened round is committed."""
        return self._final and self._committed == self._opened and not self._failed

    def handle(self, event: OwnerEvent, now_s: float) -> list[OwnerInstruction]:
        """What to do about `event`. After a FailRun every event gives an empty list."""
        if self._failed:
            return []
        match event:
            case SamplesReported():
                return self._count(event)
            case MemberFinished():
                return self._finish(event)
            case MemberLost():
                return self._fail(f"lost {event.member!r}: {event.reason}")
            case FinishRequested():
                return self._request_finish()

    def _count(self, event: SamplesReported) -> list[OwnerInstruction]:
        # Reports are running totals: one that was overtaken by a later one says nothing new.
        self._samples[event.cluster] = max(event.samples, self._samples.get(event.cluster, 0))
        return self._open_when_due()

    def _open_when_due(self) -> list[OwnerInstruction]:
        total = sum(self._samples.values())
        held_back = self._opened - self._committed > self._max_lag
        if self._final or held_back or total < self._next_open_at:
            return []
        # A leap over several thresholds, or several passed while held back, open one round: it would find
        # nothing new for the others.
        self._next_open_at = (total // self._average_every + 1) * self._average_every
        return [self._open()]

    def _request_finish(self) -> list[OwnerInstruction]:
        if self._final:
            return []
        self._final = True
        # Clusters go on working after a round opens, so any sample at all may be unaveraged.
        return [self._open()] if any(self._samples.values()) else []

    def _open(self) -> OpenRound:
        self._opened += 1
        self._awaited[self._opened] = set(self._pairs)
        return OpenRound(self._opened, self.epoch, self._final)

    def _finish(self, event: MemberFinished) -> list[OwnerInstruction]:
        pair = (event.ring, event.member)
        if pair not in self._pairs:
            return self._fail(f"{event.member!r} reported ring {event.ring!r}, of which it is no member")
        if not 1 <= event.round <= self._opened:
            return self._fail(f"{event.member!r} reported round {event.round}, which is not open")
        if event.round > self._committed:
            self._awaited[event.round].discard(pair)
        commits: list[OwnerInstruction] = []
        while self._committed < self._opened and not self._awaited[self._committed + 1]:
            self._committed += 1
            del self._awaited[self._committed]
            commits.append(CommitRound(self._committed, self.epoch))
        return commits + self._open_when_due()

    def _fail(self, reason: str) -> list[OwnerInstruction]:
        self._failed = True
        return [FailRun(reason)]


@dataclass(frozen=True)
class RingFinished:
    """This stage holds the whole average of `ring` in `round`."""

    ring: str
    round: int


@dataclass(frozen=True)
class RoundCommitted:
    """The owner has committed `round`."""

    round: int


MemberEvent = RingFinished | RoundCommitted


@dataclass(frozen=True)
class MergeRound:
    """Merge the averages of all this stage's rings of `round`, at the next update boundary."""

    round: int


@dataclass
class RoundMember:
    """Says when one stage may merge: a round that is committed and whole here, in round order, each once."""

    rings: Iterable[str]
    """The rings that this stage belongs to."""

    _finished: dict[int, set[str]] = field(default_factory=dict)
    _committed: set[int] = field(default_factory=set)
    _merged: int = 0

    def __post_init__(self) -> None:
        self.rings = frozenset(self.rings)

    @property
    def merged(self) -> int:
        """The newest round that this stage was told to merge, 0 before the first."""
        return self._merged

    def handle(self, event: MemberEvent, now_s: float) -> list[MergeRound]:
        """The rounds to merge now, oldest first. Duplicates and rounds already merged have no effect."""
        if event.round > self._merged:
            if isinstance(event, RoundCommitted):
                self._committed.add(event.round)
            elif event.ring in self.rings:
                self._finished.setdefault(event.round, set()).add(event.ring)
            else:
                raise InvalidInput(f"ring {event.ring!r} is none of this stage's rings")
        merges = []
        while self._merged + 1 in self._committed and self._finished.get(self._merged + 1, set()) == self.rings:
            self._merged += 1
            self._committed.discard(self._merged)
            self._finished.pop(self._merged, None)
            merges.append(MergeRound(self._merged))
        return merges
