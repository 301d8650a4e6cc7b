"""The decision when a round opens. Who takes part, and when it is committed, is decided by membership.py. Sans-I/O.

In: events (samples reported, ring finished, member lost, end requested). Out: instructions (open, commit, fail). It
knows no vectors, sockets or clocks (design §7). A `RoundOwner` runs where membership is owned, in the driver of a run.
A round opens by samples. It is held back only where the members' lag limit would let nobody contribute, since rounds
that nobody can reach would only queue up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ring_allreduce.errors import InvalidInput
from ring_allreduce.rounds.events import (
    FinishRequested,
    OpenRound,
    OwnerEvent,
    OwnerInstruction,
    RoundRequested,
    SamplesReported,
)
from ring_allreduce.rounds.membership import RoundLossPolicy, RoundMembership


@dataclass(frozen=True)
class RoundsUnderWay:
    """How far an owner of rounds has come: its epoch, the newest rounds that are committed and opened, and the samples
    that each cluster has reported."""

    epoch: int = 0
    committed: int = 0
    opened: int = 0
    samples: Mapping[str, int] = field(default_factory=dict)


class RoundOwner:
    """An owner numbers the rounds from 1, opens them by samples, and commits each over all rings at once and in
    order.
    """

    def __init__(
        self,
        rings: Mapping[str, Sequence[str]],
        average_every: int,
        epoch: int = 0,
        *,
        max_lag: int = 1,
        on_loss: RoundLossPolicy = "fail",
        clusters: Mapping[str, str] | None = None,
        under_way: RoundsUnderWay | None = None,
    ) -> None:
        """`rings`, `on_loss`, `clusters`: RoundMembership's. `average_every`: samples of the whole fleet that make one
        round.

        `max_lag`: rounds, that of the members: at most max_lag + 1 are open at once, the last of them the one at
        which members wait; the final round opens whatever is open. `under_way`: how far another owner has come, whose
        members this one takes over and brings together by `begin`. Raises InvalidInput.
        """
        if average_every < 1:
            raise InvalidInput(f"average_every must be at least 1 sample, got {average_every}")
        if max_lag < 1:
            raise InvalidInput(f"max_lag must be at least 1 round, got {max_lag}")
        before = RoundsUnderWay(epoch=epoch) if under_way is None else under_way
        self._membership = RoundMembership(
            rings, epoch=before.epoch, on_loss=on_loss, clusters=clusters, committed=before.committed
        )
        self._average_every = average_every
        self._max_lag = max_lag
        self._samples: dict[str, int] = dict(before.samples)
        self._total = sum(before.samples.values())
        self._next_open_at = (self._total // average_every + 1) * average_every
        self._opened = self._membership.opened = before.opened
        self._requested = False
        self._final = False

    @property
    def epoch(self) -> int:
        """Return the epoch of membership."""
        return self._membership.epoch

    @property
    def opened(self) -> int:
        """Return the newest round that was opened, 0 before the first."""
        return self._opened

    @property
    def committed(self) -> int:
        """Return the newest round that was committed, 0 before the first."""
        return self._membership.committed

    @property
    def rings(self) -> Mapping[str, Sequence[str]]:
        """Return the members of each ring, in passing order."""
        return self._membership.rings

    @property
    def finished(self) -> bool:
        """Say whether the end was requested and every opened round is committed."""
        return self._final and self.committed == self._opened and not self._membership.failed

    def begin(self) -> list[OwnerInstruction]:
        """Return how an epoch begins that brings all members together: those of another owner, whom this one takes
        over."""
        return [*self._membership.begin()]

    def handle(self, event: OwnerEvent, now_s: float) -> list[OwnerInstruction]:
        """Return what to do about `event`. After a FailRun every event gives an empty list."""
        if self._membership.failed:
            return []
        match event:
            case SamplesReported():
                # Reports are running totals: one that was overtaken by a later one says nothing new.
                known = self._samples.get(event.cluster, 0)
                self._samples[event.cluster] = max(event.samples, known)
                self._total += max(0, event.samples - known)
                return self._open_when_due()
            case FinishRequested():
                return self._request_finish()
            case RoundRequested():
                self._requested = self._total > 0
                return self._open_when_due()
            case _:
                out: list[OwnerInstruction] = [*self._membership.handle(event)]
                return out + self._open_when_due()

    def _open_when_due(self) -> list[OwnerInstruction]:
        total = self._total
        held_back = self._opened - self.committed > self._max_lag or self._membership.failed
        if self._final or held_back or not (self._requested or total >= self._next_open_at):
            return []
        self._requested = False
        # A leap over several thresholds, or several passed while held back, open one round: it would find
        # nothing new for the others.
        self._next_open_at = (total // self._average_every + 1) * self._average_every
        return [self._open()]

    def _request_finish(self) -> list[OwnerInstruction]:
        if self._final:
            return []
        self._final = True
        # Clusters go on working after a round opens, so any sample at all may be unaveraged.
        return [self._open()] if self._total else []

    def _open(self) -> OpenRound:
        self._opened += 1
        self._membership.opened = self._opened
        return OpenRound(self._opened, self.epoch, self._final)
