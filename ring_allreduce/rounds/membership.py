"""Who takes part, and what becomes of the rounds under way when that changes. Sans-I/O: no clock, socket or vector.

In: events (a member finished, was lost, is suspected, has stopped, joined). Out: instructions (commit, reform, resume,
leave out, fail). This is the one place that decides who is in, which epoch it is, and what is committed (design §7).
An epoch begins with a barrier, so that nobody sends in it before everybody is in it:

    a loss, a newcomer, a suspicion ─► Reform(epoch) ─► every member stops its rings and answers what it holds
    all have answered ─► Resume: a round of which every ring is whole somewhere is kept, and handed on to who misses
    it; every other round starts again in all rings, from what was contributed, without the lost clusters

So the averages of one round are made of the same clusters in all rings, and no member merges one that another does
not get: a commit needs every ring of a round whole at every member, and comes in order. Who is lost meanwhile begins
another epoch. A suspicion is no loss yet: the connection that swallowed a chunk may be back, so the round is tried
once more with everybody; who is suspected again before the next commit is left out.

A newcomer takes part from the first round after those that are kept. The barrier of a loss stays closed for a cluster
that is about to return, until it has joined or is given up: else the others would complete the round under way without
it, at once where they are few, and all of that average would have to be sent to it before it can train.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from ring_allreduce.errors import InvalidInput
from ring_allreduce.rounds.events import (
    ClusterJoined,
    CommitRound,
    FailRun,
    HandOn,
    LeaveOut,
    MemberFinished,
    MemberHeld,
    MemberLost,
    MembershipEvent,
    MembershipInstruction,
    MemberSuspected,
    Reform,
    Resume,
    ReturnGivenUp,
)

RoundLossPolicy = Literal["fail", "reform"]
Pairs = set[tuple[str, str]]
"""A set of (ring, member)."""

Finished = dict[tuple[str, str], str]
"""What each (ring, member) that has finished averages, in words; it is empty where that is given beforehand."""


class RoundMembership:
    """The members, epochs and commits of one set of rings."""

    def __init__(
        self,
        rings: Mapping[str, Sequence[str]],
        *,
        ahead: int = 0,
        epoch: int = 0,
        on_loss: RoundLossPolicy = "reform",
        clusters: Mapping[str, str] | None = None,
        committed: int = 0,
    ) -> None:
        """`rings` has the members of each ring, in passing order. `committed` is the newest round that is committed.

        This many rounds (`ahead`) beyond the last commit are open by themselves; others are when `opened` says so.
        `on_loss` "fail" ends the run when anyone is lost. `clusters` has the cluster of each member; with None each is
        its own. Raises InvalidInput.
        """
        for ring, members in rings.items():
            if not members or len(set(members)) != len(members):
                raise InvalidInput(f"ring {ring!r} needs at least one member and no member twice: {list(members)}")
        self._rings = {ring: tuple(members) for ring, members in rings.items()}
        self._first_round = {member: 1 for members in self._rings.values() for member in members}
        self._clusters = {member: (clusters or {}).get(member, member) for member in self._first_round}
        self._ahead = ahead
        self._on_loss = on_loss
        self._finished: dict[int, Finished] = {}
        self._held: dict[str, MemberHeld] | None = None
        self._fewest = 0
        """So many have to finish the next round at least, as long as nobody comes or goes."""
        self._suspected: set[str] = set()
        self._returning: set[str] = set()
        """The clusters for which the barrier stays closed."""
        self._spoilt = False  # what is whole was made with someone who averages or sends something else
        self.epoch = epoch
        self.committed = committed
        """The newest round that was committed, 0 before the first."""
        self.opened = committed
        """The newest round that was opened, for an owner who opens them."""
        self.failed = False

    @property
    def newest(self) -> int:
        """Return the newest round that may be under way."""
        return max(self.opened, self.committed + self._ahead)

    @property
    def rings(self) -> Mapping[str, tuple[str, ...]]:
        """Return the members of each ring, in passing order."""
        return self._rings

    @property
    def members(self) -> tuple[str, ...]:
        """Return the names of all who take part."""
        return tuple(self._first_round)

    @property
    def forming(self) -> tuple[str, ...]:
        """Return the members whose answer to the last Reform is missing; empty when the epoch is under way."""
        held = self._held
        return () if held is None else tuple(member for member in self._first_round if member not in held)

    def begin(self) -> list[MembershipInstruction]:
        """Begin the first epoch, for members that have to be brought together."""
        return self._reform({})

    def handle(self, event: MembershipEvent) -> list[MembershipInstruction]:
        """Return the instructions that answer `event`, in order; none after a FailRun and for news of an older
        epoch.
        """
        if self.failed:
            return []
        match event:
            case MemberFinished():
                return self._finish(event)
            case MemberLost():
                self._spoilt = self._spoilt or (event.spoils and event.member in self._first_round)
                if event.returns and event.member in self._first_round and not event.spoils:
                    self._returning.add(self._clusters[event.member])
                return self._lose({event.member: event.reason})
            case ReturnGivenUp():
                self._returning.discard(event.cluster)
                return self._resume_when_all_are_in()
            case MemberHeld():
                return self._hold(event)
            case MemberSuspected():
                return self._suspect(event)
            case ClusterJoined():
                return self._join(event)

    def _finish(self, event: MemberFinished) -> list[MembershipInstruction]:
        reform = self._on_loss == "reform"
        if reform and (event.member not in self._first_round or self._held is not None):
            return []
        if event.epoch not in (None, self.epoch):
            return []
        if event.member not in self._rings.get(event.ring, ()):
            return self._contradict(event.member, f"reported ring {event.ring!r}, of which it is no member")
        if not 1 <= event.round <= self.newest:
            return self._contradict(event.member, f"reported round {event.round}, which is not open")
        if event.round > self.committed:
            self._finished.setdefault(event.round, {})[event.ring, event.member] = event.form
        return self._commit()

    def _contradict(self, member: str, what: str) -> list[MembershipInstruction]:
        if self._on_loss == "reform":
            return self._lose({member: f"it {what}"})
        return self._fail(f"{member!r} {what}")

    def _commit(self) -> list[MembershipInstruction]:
        commits: list[MembershipInstruction] = []
        while self._all_finished(self.committed + 1):
            forms = self._finished[self.committed + 1]
            odd = _odd_ones_out({member: form for (_, member), form in forms.items() if form})
            if odd:
                return [*commits, *self._refuse(odd)]
            self.committed += 1
            del self._finished[self.committed]
            self._suspected.clear()
            commits.append(CommitRound(self.committed, self.epoch))
        return commits

    def _all_finished(self, round: int) -> bool:  # noqa: A002 - our word
        finished = self._finished.get(round, {})
        if len(finished) < self._fewest:  # spares making the set of those awaited for each of thousands of members
            return False
        awaited = self._awaited(round)
        self._fewest = 0 if awaited <= finished.keys() else len(awaited)
        return not self._fewest

    def _refuse(self, odd: Mapping[str, str]) -> list[MembershipInstruction]:
        """Leave out who averages something else; what was made with them starts again."""
        self._spoilt = True
        return self._lose(odd, refused=True)

    def _awaited(self, round: int) -> Pairs:  # noqa: A002 - our word
        return {
            (ring, member)
            for ring, members in self._rings.items()
            for member in members
            if self._first_round[member] <= round
        }

    def _suspect(self, event: MemberSuspected) -> list[MembershipInstruction]:
        if event.epoch != self.epoch or self._held is not None or event.member not in self._first_round:
            return []
        if self._on_loss == "fail" or event.member in self._suspected:
            return self._lose({event.member: event.reason}, refused=event.refused)
        self._suspected.add(event.member)
        return self._reform({})

    def _join(self, event: ClusterJoined) -> list[MembershipInstruction]:
        if set(event.members) & set(self._first_round) or event.cluster in self._clusters.values():
            raise InvalidInput(f"{event.cluster!r} has joined already: {sorted(event.members)}")
        self._returning.discard(event.cluster)
        for member, rings in event.members.items():
            self._clusters[member] = event.cluster
            # It has seen no round: the barrier says which is its first.
            self._first_round[member] = self.newest + 1
            for ring in rings:
                self._rings[ring] = (*self._rings[ring], member)
        return self._reform({})

    def _lose(self, lost: Mapping[str, str], *, refused: bool = False) -> list[MembershipInstruction]:
        known = {member: reason for member, reason in lost.items() if member in self._first_round}
        if self._on_loss == "fail":
            return self._fail("; ".join(f"lost {member!r}: {reason}" for member, reason in lost.items()))
        if not known:
            return []
        reasons = {self._clusters[member]: (member, reason) for member, reason in known.items()}
        out: dict[str, str] = {}
        for member in self.members:
            if self._clusters[member] in reasons:
                cause, reason = reasons[self._clusters[member]]
                out[member] = reason if member in known else f"with {cause!r}: {reason}"
        for member in out:
            del self._first_round[member], self._clusters[member]
        self._rings = {ring: tuple(m for m in members if m not in out) for ring, members in self._rings.items()}
        leave: list[MembershipInstruction] = [
            LeaveOut(member, self.epoch + 1, out[member], refused)
            for member in sorted(out, key=lambda each: each not in known)  # first those who are the cause
        ]
        empty = [ring for ring, members in self._rings.items() if not members]
        if empty:
            why = "; ".join(f"{member!r}: {reason}" for member, reason in out.items())
            return leave + self._fail(f"nobody is left in ring {empty[0]!r} after {why}")
        return leave + self._reform(out)

    def _fail(self, reason: str) -> list[MembershipInstruction]:
        self.failed = True
        return [FailRun(reason)]

    def _reform(self, lost: Mapping[str, str]) -> list[MembershipInstruction]:
        self.epoch += 1
        self._held = {}
        self._fewest = 0
        return [Reform(self.epoch, dict(self._rings), self.committed, dict(lost))]

    def _hold(self, event: MemberHeld) -> list[MembershipInstruction]:
        if self._held is None or event.epoch != self.epoch or event.member not in self._first_round:
            return []
        self._held[event.member] = event
        return self._resume_when_all_are_in()

    def _resume_when_all_are_in(self) -> list[MembershipInstruction]:
        held = self._held
        return [] if held is None or self.forming or self._returning else self._resume(held)

    def _resume(self, held: Mapping[str, MemberHeld]) -> list[MembershipInstruction]:
        odd = _odd_ones_out({member: answer.form for member, answer in held.items() if answer.form})
        if odd:
            return self._refuse(odd)
        open_rounds = range(self.committed + 1, self.newest + 1)
        finished: dict[int, Finished] = {
            number: {pair: held[pair[1]].form for pair in self._pairs() if (pair[0], number) in held[pair[1]].holding}
            for number in ([] if self._spoilt else open_rounds)
        }
        self._spoilt = False
        kept = [number for number in finished if {ring for ring, _ in finished[number]} == set(self._rings)]
        newcomers = [member for member, first in self._first_round.items() if first > self.committed + 1]
        if newcomers:
            # They are in the rings of every round that starts again, so none of those may come before a kept one.
            kept = [number for number in kept if set(range(self.committed + 1, number)) <= set(kept)]
            first = self.committed + len(kept) + 1
            self._first_round.update(dict.fromkeys(newcomers, first))
        self._finished = {number: finished[number] for number in kept}
        self._fewest = 0
        self._held = None
        hand_on: list[HandOn] = [
            (ring, number, holders[0], missing)
            for number in kept
            for ring, members in self._rings.items()
            if (holders := [member for member in members if (ring, member) in finished[number]])
            and (missing := tuple(m for m in members if (ring, m) in self._awaited(number) and m not in holders))
        ]
        return [Resume(self.epoch, tuple(kept), tuple(hand_on), dict(self._first_round)), *self._commit()]

    def _pairs(self) -> Pairs:
        return {(ring, member) for ring, members in self._rings.items() for member in members}


def _odd_ones_out(forms: Mapping[str, str]) -> dict[str, str]:
    """Return who averages something else than most do, and in what it differs; all, when there is no such most."""
    counts = Counter(forms.values()).most_common()
    if len(counts) < 2:
        return {}
    usual = counts[0][0] if counts[0][1] > counts[1][1] else None
    others = f"the others {usual}" if usual else "and as many others something else"
    return {member: f"it averages {form}, {others}" for member, form in forms.items() if form != usual}
