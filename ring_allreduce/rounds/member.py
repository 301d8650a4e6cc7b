"""One member's side of rounds: when it may merge one, and what it does when an epoch of membership begins. Sans-I/O.

In: events (a ring has finished, a round was committed, an epoch begins). Out: instructions (merge, report, hand
on). `EpochMember` is the other end of rounds/membership.py. It knows names and numbers of rounds, and no vector, socket
or clock (design §7).
"""

from ring_allreduce.rounds.events import (
    AcceptAverage,
    CommitRound,
    EpochInstruction,
    MergeRound,
    Reform,
    ReformRings,
    ReportFinished,
    ReportHeld,
    RestartRound,
    Resume,
    RingFinished,
    RoundContributed,
    RoundKey,
    SendAverage,
)

Event = RoundContributed | RingFinished | Reform | Resume | CommitRound


class EpochMember:
    """What one member has contributed and holds, over all its rings.

    Between Reform and Resume nothing is contributed and nothing is sent. What comes late or twice, or belongs to an
    older epoch, has no effect.
    """

    def __init__(self, me: str, *, paused: bool = True) -> None:
        """`paused` says whether the first epoch begins with a Resume, as in a group that has to meet; a run's stages
        are all there when it begins."""
        self._me = me
        self._contributed: set[int] = set()
        self._holding: set[RoundKey] = set()
        self._first_round = 1
        self.epoch = 0
        self.committed = 0
        """The newest round that may be merged, 0 before the first."""
        self.paused = paused
        """Whether an epoch is beginning: contribute to nothing until it has begun."""

    @property
    def first_round(self) -> int:
        """Return the first round that this member takes part in, as the last epoch has said."""
        return self._first_round

    @property
    def next_round(self) -> int | None:
        """Return the round to contribute to after the last one that is committed; None while it is not this member's
        yet.
        """
        return None if self.paused or self.committed + 1 < self._first_round else self.committed + 1

    def handle(self, event: Event) -> list[EpochInstruction]:
        """Return what to do about `event`, in order."""
        match event:
            case RoundContributed():
                self._contributed.add(event.round)
                return []
            case RingFinished():
                return self._finished(event)
            case Reform():
                return self._reform(event)
            case Resume():
                return self._resume(event)
            case CommitRound():
                return self._commit(event.round)

    def _finished(self, event: RingFinished) -> list[EpochInstruction]:
        if self.paused or event.round <= self.committed:
            return []
        self._holding.add((event.ring, event.round))
        return [ReportFinished(event.ring, event.round, self.epoch)]

    def _reform(self, event: Reform) -> list[EpochInstruction]:
        if event.epoch <= self.epoch:
            return []
        merges = self._commit(event.committed)
        self.epoch = event.epoch
        self.paused = True
        held = ReportHeld(self.epoch, tuple(sorted(self._holding)))
        return [*merges, ReformRings(event.epoch, event.rings), held]

    def _resume(self, event: Resume) -> list[EpochInstruction]:
        if event.epoch != self.epoch or not self.paused:
            return []
        self.paused = False
        self._first_round = event.first_rounds[self._me]
        again = sorted(self._contributed - set(event.kept))
        self._holding = {key for key in self._holding if key[1] in event.kept}
        restarts: list[EpochInstruction] = [RestartRound(number) for number in again]
        for ring, number, holder, to in event.hand_on:
            if self._me == holder:
                restarts.append(SendAverage(ring, number, to))
            elif self._me in to:
                restarts.append(AcceptAverage(ring, number, holder))
        return restarts

    def _commit(self, up_to: int) -> list[EpochInstruction]:
        if up_to <= self.committed:
            return []
        # A newcomer has no part in the rounds before its first.
        merges: list[EpochInstruction] = [MergeRound(number) for number in sorted(self._contributed) if number <= up_to]
        self.committed = up_to
        self._contributed = {number for number in self._contributed if number > up_to}
        self._holding = {key for key in self._holding if key[1] > up_to}
        return merges
