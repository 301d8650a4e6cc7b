"""The decisions of a stand-alone group's owner: what it answers to its members. Sans-I/O.

In: members' messages, and times. Out: messages to members. It admits those who may join (admission.py), watches members
(liveness.py), and follows rounds/membership.py, which decides. A group has one ring, and one round under way: the one
after the last commit. Everything that a member says is checked here before it is used.
"""

import math
from collections.abc import Mapping, Sequence

from ring_allreduce.group.admission import why_not
from ring_allreduce.group.control_messages import (
    MAX_REASON_CHARACTERS,
    RING,
    AliveMessage,
    CommittedMessage,
    FinishedMessage,
    HandingOn,
    HeardMessage,
    HeldMessage,
    JoinMessage,
    LeavingMessage,
    OverdueMessage,
    PutOutMessage,
    ReformedMessage,
    ResumedMessage,
    SuspectedMessage,
)
from ring_allreduce.group.liveness import Watch
from ring_allreduce.rounds.deadlines import Patience
from ring_allreduce.rounds.events import (
    ClusterJoined,
    CommitRound,
    FailRun,
    LeaveOut,
    MemberFinished,
    MemberHeld,
    MemberLost,
    MembershipEvent,
    MembershipInstruction,
    MemberSuspected,
    Reform,
    Resume,
)
from ring_allreduce.rounds.membership import RoundMembership
from ring_allreduce.transport.message import Message

Said = tuple[Sequence[str], Message]
"""Members, and the message for them. After PutOutMessage there is nothing more to say to them."""


class GroupOwner:
    """The owner keeps the members of one group, from the first that joins."""

    def __init__(self, size: int, patience: Patience, allowed: Mapping[str, str] | None = None) -> None:
        """`size` members meet before the group begins, and it never has more.

        `allowed` is the allow-list that all members need, in the form of a JoinMessage; it is None without keys.
        """
        self._size = size
        self._allowed = allowed
        self._joined: dict[str, JoinMessage] = {}
        self._membership: RoundMembership | None = None
        self._watch = Watch(patience)

    @property
    def begun(self) -> bool:
        """This is true once the group has met."""
        return self._membership is not None

    @property
    def members(self) -> tuple[str, ...]:
        """These are the members that have joined and are in."""
        return tuple(self._joined)

    @property
    def full(self) -> bool:
        """This is true while no place is free."""
        return len(self._joined) >= self._size

    def join(self, join: JoinMessage, now_s: float) -> tuple[str | None, list[Said]]:
        """Return why `join` is refused, or None, and what to tell whom."""
        reason = why_not(join, self._size, self._joined, self._allowed)
        if reason:
            return reason[:MAX_REASON_CHARACTERS], []
        self._joined[join.name] = join
        self._watch.welcome(join.name, now_s)
        if self._membership is not None:
            return None, self._follow(self._membership.handle(ClusterJoined(join.name, {join.name: (RING,)})), now_s)
        if not self.full:
            return None, []
        self._membership = RoundMembership({RING: sorted(self._joined)}, ahead=1)
        return None, self._follow(self._membership.begin(), now_s)

    def lost(self, member: str, reason: str, now_s: float) -> list[Said]:
        """Take note that the connection of `member` has ended."""
        if self._membership is None:
            self._forget(member)
            return []
        return self._follow(self._membership.handle(MemberLost(member, reason[:MAX_REASON_CHARACTERS])), now_s)

    def take(self, member: str, message: Message, now_s: float) -> list[Said] | None:
        """Return what follows from a message of `member`, who has joined, or None if it may not say that now; one that
        has left may say nothing.
        """
        if member not in self._joined:
            return None
        self._watch.heard(member, now_s)
        if isinstance(message, AliveMessage):
            self._watch.reported(member, message.report, now_s)
            # Who is inside average() reads, and so hears that the rendezvous lives.
            return [([member], HeardMessage())] if message.report.round else []
        if isinstance(message, LeavingMessage):
            return self.lost(member, f"it left: {message.reason}", now_s)
        if self._membership is None:
            return None
        event: MembershipEvent
        match message:
            case FinishedMessage():
                form = message.form[:MAX_REASON_CHARACTERS]
                event = MemberFinished(message.round, member, RING, message.epoch, form)
            case HeldMessage():
                holding = tuple((RING, number) for number in message.rounds)
                event = MemberHeld(message.epoch, member, holding, message.form[:MAX_REASON_CHARACTERS])
            case SuspectedMessage():
                reason = f"refused by {member!r}: {message.reason[:MAX_REASON_CHARACTERS]}"
                event = MemberSuspected(message.epoch, message.member, reason, refused=True)
            case OverdueMessage():
                if message.round == self._membership.committed + 1 and math.isfinite(message.waited_s):
                    self._watch.overdue(member, message.round, message.waited_s, now_s)
                return []
            case _:
                return None
        return self._follow(self._membership.handle(event), now_s)

    def check(self, now_s: float) -> list[Said]:
        """Return what follows from the clock. Call it now and then, after everything that came was taken."""
        if self._membership is None:
            return []
        said: list[Said] = []
        for event in self._watch.check(now_s, self._membership.epoch, self._membership.forming):
            said += self._follow(self._membership.handle(event), now_s)
        return said

    def _forget(self, member: str) -> None:
        self._joined.pop(member, None)
        self._watch.forget(member)

    def _follow(self, orders: Sequence[MembershipInstruction], now_s: float) -> list[Said]:
        said: list[Said] = []
        for order in orders:
            match order:
                case LeaveOut():
                    self._forget(order.member)
                    reason = order.reason[:MAX_REASON_CHARACTERS]
                    said.append(
                        ([order.member], PutOutMessage(epoch=order.epoch, reason=reason, refused=order.refused))
                    )
                case Reform():
                    self._watch.epoch_began(now_s)
                    members = order.rings[RING]
                    addresses = {name: self._joined[name].address for name in members}
                    lost = {name: reason[:MAX_REASON_CHARACTERS] for name, reason in order.lost.items()}
                    reformed = ReformedMessage(
                        epoch=order.epoch, members=addresses, committed=order.committed, lost=lost
                    )
                    said.append((members, reformed))
                case Resume():
                    said += [([name], _resumed(order, first)) for name, first in order.first_rounds.items()]
                case CommitRound():
                    self._watch.committed(order.round)
                    said.append((self.members, CommittedMessage(epoch=order.epoch, round=order.round)))
                case FailRun():
                    pass  # nobody is left to be told
        return said


def _resumed(order: Resume, first_round: int) -> ResumedMessage:
    hand_on = [HandingOn(number, holder, list(to)) for _, number, holder, to in order.hand_on]
    return ResumedMessage(epoch=order.epoch, kept=list(order.kept), hand_on=hand_on, first_round=first_round)
