"""When a step opens, who takes part, and when it is committed: the backbone's state machine. Sans-I/O.

In: what peers said, as events with the time at which they came. Out: instructions. A step goes like this:

    collecting   peers compute and report; the batch is estimated (progress.py)
    open         each peer was told at how many samples to stop; what it sends is added to the step's sum
    committed    the sum holds the target batch: everyone applies the mean, and the next step begins

A peer that is lost, late or refused while a step is open costs what it had not sent. If too little is left the step is
collected further: all go on with the same weights, and what has been added stays. So a batch is never smaller than the
target, and no peer can hold a step up for longer than `patience_s`.
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass

from ravnest.collaboration.progress import Report, full_at_s, quotas

FIRST_PATIENCE_S = 120.0
"""How long a contribution may take while none has come yet: models and links of any size begin here."""

LEAST_PATIENCE_S = 5.0
PATIENCE_FACTOR = 4.0
"""A contribution may take so many times the longest one of the last `RECENT`, and never less than LEAST_PATIENCE_S."""

RECENT = 32

MOST_REFUSED = 3
"""A peer whose contributions were refused so often is put out."""

LOOK_AHEAD_S = 60.0


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


Event = PeerBecameReady | ProgressCame | ContributionCame | ContributionRefused | PeerLeft | TimePassed


@dataclass(frozen=True)
class OpenStep:
    """Tell each of these peers to send what it has as soon as it has so many samples."""

    step: int
    stops: Mapping[str, int]


@dataclass(frozen=True)
class CollectOn:
    """Tell all peers to go on computing for the same step: too little has come."""

    step: int


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


Instruction = OpenStep | CollectOn | CommitStep | PutOut


class StepOwner:
    """Owns the number of the step, and what is known of the peers' progress in it."""

    def __init__(self, target_batch: int, step: int = 0) -> None:
        """`step`: the number of steps that have been made."""
        self.target_batch = target_batch
        self.step = step
        self._ready: set[str] = set()
        self._reports: dict[str, Report] = {}
        self._given: Counter[str] = Counter()
        self._awaited: set[str] | None = None  # None: collecting
        self._opened_s = 0.0
        self._took_s: deque[float] = deque(maxlen=RECENT)
        self._refused: Counter[str] = Counter()

    @property
    def open(self) -> bool:
        """Whether the step is open, and no longer collected."""
        return self._awaited is not None

    @property
    def peers(self) -> frozenset[str]:
        """The peers that compute."""
        return frozenset(self._ready)

    @property
    def patience_s(self) -> float:
        """How long a contribution may take from the opening on."""
        if not self._took_s:
            return FIRST_PATIENCE_S
        return max(LEAST_PATIENCE_S, PATIENCE_FACTOR * max(self._took_s))

    @property
    def needed(self) -> int:
        """Samples that are still missing from the sum."""
        return max(0, self.target_batch - sum(self._given.values()))

    def next_due_s(self, now_s: float) -> float | None:
        """When TimePassed is due at the latest; None while only messages can change anything."""
        if self._awaited is not None:
            return self._opened_s + self.patience_s
        return full_at_s(self._reports, self.needed, now_s, LOOK_AHEAD_S) if self._reports else None

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        """Return what follows from an event. One that is about a step that is over changes nothing."""
        match event:
            case PeerBecameReady(peer=peer, step=step):
                if step == self.step:
                    self._ready.add(peer)
            case ProgressCame(peer=peer) if peer in self._ready and event.step == self.step:
                self._reports[peer] = Report(
                    event.samples, event.samples_per_s, event.micro_batch, now_s, event.every_s
                )
            case ContributionCame(peer=peer, samples=samples) if peer in self._ready and event.step == self.step:
                self._given[peer] += samples
                self._sent(peer)
                if self._awaited is not None:
                    self._took_s.append(now_s - self._opened_s)
            case ContributionRefused(peer=peer):
                self._sent(peer)
                self._refused[peer] += 1
                if self._refused[peer] >= MOST_REFUSED:
                    self._forget(peer)
                    return [PutOut(peer, event.reason), *self._decide(now_s)]
            case PeerLeft(peer=peer):
                self._forget(peer)
            case _:
                pass
        return self._decide(now_s)

    def _decide(self, now_s: float) -> list[Instruction]:
        if self._awaited is None:
            return self._open(now_s)
        if self._awaited and now_s < self._opened_s + self.patience_s:
            return []
        self._awaited = None
        if self.needed:
            self._reports = {}  # what they have not sent they report anew
            return [CollectOn(self.step)]
        committed = CommitStep(self.step, dict(self._given))
        self.step += 1
        self._reports, self._given = {}, Counter()
        return [committed]

    def _open(self, now_s: float) -> list[Instruction]:
        if not self._reports or full_at_s(self._reports, self.needed, now_s, 0.0) is None:
            return []
        stops = quotas(self._reports, self.needed, now_s)
        self._awaited = {peer for peer, samples in stops.items() if samples}
        self._opened_s = now_s
        # No volunteer makes more than a whole batch: it waits there, whatever it is taken to have.
        every = {peer: min(stops.get(peer, 0), self.target_batch) for peer in sorted(self._ready)}
        return [OpenStep(self.step, every)]

    def _sent(self, peer: str) -> None:
        self._reports.pop(peer, None)
        if self._awaited is not None:
            self._awaited.discard(peer)

    def _forget(self, peer: str) -> None:
        self._ready.discard(peer)
        self._sent(peer)
        self._refused.pop(peer, None)
