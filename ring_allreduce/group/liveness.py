"""Rules that decide which member of a group is gone, late or cut off, from what the members say of themselves.

In: signs of life with each member's report, and times; no clock is read here. Out: the members to be suspected or lost.
What follows from that is decided by rounds/membership.py. The rules, and who is to blame:

- **Silent.** Nothing was heard of a member on its control connection for a deadline derived from its usual gaps: its
  process is frozen, or its machine unreachable. It is lost. (A connection that closes is a loss at once, elsewhere.)
- **Late.** Someone says that it has waited in average() for its time-out, its signs of life have come from there for
  as long, and another has not called average() for that round, or has said nothing since: the other is lost.
- **Stalled.** Among those who pass on what they get, waiting is no guilt. A link x → y is dead when y has received
  nothing more of this round for its deadline, although x says that it has sent more than y received, or all of it. Who
  is an end of the most dead links is suspected; of the two ends of one link the receiver, since a member that hears
  nobody names only one of those it waits for. But when x, which waits for nobody, has not sent what y waits for, x is.
  A member that is slow makes progress: every chunk that arrives begins the deadline anew.
- **Stuck.** A member that is inside average() does not answer the beginning of an epoch: it is lost.

Time during which the watch itself stood still (a frozen process, a suspended machine) counts for nobody.
"""

from collections import Counter
from collections.abc import Collection

import msgspec

from ring_allreduce.rounds.deadlines import AwakeTime, Patience, SilenceDeadline
from ring_allreduce.rounds.events import MemberLost, MemberSuspected
from ring_allreduce.transport.message import Count, Name

LATE_SIGNS = 3
"""A member is late if this many signs of life do not come once another's time is up.

Nobody is late before this many signs after another's first one from inside average(). A watch that looked at nothing
for as long stood still itself.
"""


class Report(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a member says of itself: the round for which it is inside average() (0 if it is not), and its ring."""

    epoch: Count = 0
    round: Count = 0
    received: Count = 0
    """The number of chunks that have arrived in this round."""
    sent: Count = 0
    waits_for: Name = ""
    """The member whose chunks are missing; it is empty if nobody's are."""
    whole: bool = False
    """The average is whole here, which means that everything was sent, too."""

    @property
    def under_way(self) -> tuple[int, int]:
        """These are the epoch and round that its numbers belong to."""
        return self.epoch, self.round


class _Watched:
    def __init__(self, patience: Patience, now_s: float) -> None:
        self.report = Report()
        self.reported_s = now_s
        self.called_s = now_s
        """When the round of its report was new: for so long it has been inside average() at least."""
        self.life = SilenceDeadline(now_s, floor_s=patience.silence_floor_s)
        self.arrivals = SilenceDeadline(now_s, floor_s=patience.stall_floor_s)


class Watch:
    """A watch keeps the signs of life of one group's members."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._members: dict[str, _Watched] = {}
        self._overdue: dict[str, tuple[int, float, float]] = {}  # member → round, time-out, when it said so
        self._epoch_began_s = 0.0
        self._awake = AwakeTime(LATE_SIGNS * patience.alive_every_s, patience.alive_every_s)

    def welcome(self, member: str, now_s: float) -> None:
        """Watch a new member."""
        self._members[member] = _Watched(self._patience, self._awake.at(now_s))

    def forget(self, member: str) -> None:
        """Stop watching one that is no member any more."""
        self._members.pop(member, None)
        self._overdue.pop(member, None)

    def epoch_began(self, now_s: float) -> None:
        """Take note that everybody has been told to stop and answer."""
        self._epoch_began_s = self._awake.at(now_s)

    def heard(self, member: str, now_s: float) -> None:
        """Take note that something, whatever it is, came from `member`."""
        self._members[member].life.heard(self._awake.at(now_s))

    def reported(self, member: str, report: Report, now_s: float) -> None:
        """Take a sign of life and the report in it."""
        now_s, watched = self._awake.at(now_s), self._members[member]
        before, watched.report, watched.reported_s = watched.report, report, now_s
        if report.round != before.round:
            watched.called_s = now_s
        if not report.waits_for or before.under_way != report.under_way or not before.waits_for:
            watched.arrivals.rest(now_s)
        elif report.received != before.received:
            watched.arrivals.heard(now_s)

    def overdue(self, member: str, round: int, waited_s: float, now_s: float) -> None:  # noqa: A002 - our word
        """Take note that `member` says that it has waited in average() for `waited_s`, which is as long as it was told
        to.
        """
        self._overdue[member] = round, waited_s, self._awake.at(now_s)

    def committed(self, round: int) -> None:  # noqa: A002 - our word
        """Take note that nobody waits for rounds up to this one any more."""
        self._overdue = {member: entry for member, entry in self._overdue.items() if entry[0] > round}

    def check(self, now_s: float, epoch: int, forming: Collection[str]) -> list[MemberLost | MemberSuspected]:
        """Return what follows from what was heard.

        `forming` are the members that have not answered the beginning of `epoch`. Call this at least once for each sign
        of life of a member.
        """
        now_s = self._awake.at(now_s)
        lost = {**self._stuck(now_s, forming), **self._late(now_s), **self._silent(now_s)}
        if lost:
            return [MemberLost(member, reason) for member, reason in lost.items()]
        return [] if forming else self._stalled(now_s, epoch)

    def _silent(self, now_s: float) -> dict[str, str]:
        return {
            member: f"silent for {watched.life.silent_s(now_s):.1f} s (its deadline: {watched.life.limit_s():.1f} s)"
            for member, watched in self._members.items()
            if watched.life.expired(now_s)
        }

    def _late(self, now_s: float) -> dict[str, str]:
        late, signs_s = {}, LATE_SIGNS * self._patience.alive_every_s
        for waiting, (number, limit_s, said_s) in self._overdue.items():
            # What it says of its own time is held against what came from there: signs of life that tell of this round.
            inside = self._members[waiting].report.round == number
            waited_s = now_s - self._members[waiting].called_s
            if not inside or waited_s < max(signs_s, limit_s - signs_s):
                continue
            for member, watched in self._members.items():
                if member == waiting:
                    continue
                if watched.reported_s > said_s and watched.report.round < number:
                    late[member] = f"it had not called average() for round {number} when {waiting!r} had waited for"
                    late[member] += f" {waited_s:.1f} s"
                elif watched.reported_s <= said_s and now_s > said_s + signs_s:
                    silent_s = watched.life.silent_s(now_s)
                    late[member] = f"silent for {silent_s:.1f} s, while {waiting!r} waited for round {number}"
        return late

    def _stuck(self, now_s: float, forming: Collection[str]) -> dict[str, str]:
        if now_s <= self._epoch_began_s + self._patience.stall_floor_s:
            return {}
        stuck = [member for member in forming if member in self._members and self._members[member].report.round]
        return dict.fromkeys(stuck, "inside average(), it does not answer")

    def _stalled(self, now_s: float, epoch: int) -> list[MemberLost | MemberSuspected]:
        dead: dict[tuple[str, str], str] = {}
        for receiver, watched in self._members.items():
            name = watched.report.waits_for
            sender = self._members.get(name)
            if sender is None or watched.report.epoch != epoch or not watched.arrivals.expired(now_s):
                continue
            if sender.report.under_way != watched.report.under_way:
                continue  # it has not called yet, or has only just: it may be late, but holds nothing back
            silent_s = watched.arrivals.silent_s(now_s)
            if sender.report.whole or sender.report.sent > watched.report.received:
                dead[name, receiver] = f"nothing of what {name!r} sends has reached {receiver!r} for {silent_s:.1f} s"
            elif not sender.report.waits_for:
                reason = f"it has sent {receiver!r} nothing for {silent_s:.1f} s, though it waits for nobody"
                return [MemberSuspected(epoch, name, reason)]
        if not dead:
            return []
        ends = Counter(end for link in dead for end in link)
        suspect = max([*(link[1] for link in dead), *(link[0] for link in dead)], key=lambda end: ends[end])
        reason = next(reason for link, reason in dead.items() if suspect in link)
        return [MemberSuspected(epoch, suspect, reason)]
