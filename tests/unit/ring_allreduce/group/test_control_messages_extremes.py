"""Members and rendezvous that lie: whatever one field says, the other side refuses it in words, or goes on."""

import msgspec
import pytest
from hypothesis import given, settings

from ring_allreduce.errors import ContributionRefused, InvalidInput, InvalidMessage, LeftOut, PeerLost
from ring_allreduce.group import control_messages as c
from ring_allreduce.group.liveness import Report
from ring_allreduce.group.owner import GroupOwner
from ring_allreduce.rounds.deadlines import Patience
from ring_allreduce.rounds.events import RoundContributed
from ring_allreduce.rounds.member import EpochMember
from tests.support.wire import EXTREMES, mutations, unbounded

WHERE = c.MemberAddress("127.0.0.1", 1, 2)

FROM_MEMBERS = [
    c.JoinMessage(name="z", size=3, address=WHERE),
    c.HeldMessage(epoch=1, rounds=[1], form="f"),
    c.FinishedMessage(epoch=1, round=1, form="f"),
    c.SuspectedMessage(epoch=1, member="b", reason="r"),
    c.OverdueMessage(round=1, waited_s=60.0),
    c.AliveMessage(report=Report(epoch=1, round=1, received=1, sent=1, waits_for="b")),
    c.LeavingMessage(reason="r"),
]
FROM_RENDEZVOUS = [
    c.WelcomeMessage(token=bytes(16), alive_every_s=1.0),
    c.HeardMessage(),
    c.RefusedMessage(reason="r"),
    c.ReformedMessage(epoch=1, members={"a": WHERE, "b": WHERE}, committed=0, lost={}),
    c.ResumedMessage(epoch=1, kept=[], hand_on=[c.HandingOn(1, "a", ["b"])], first_round=1),
    c.CommittedMessage(epoch=1, round=1),
    c.PutOutMessage(epoch=1, reason="r", refused=False),
]
REPORTS = [msgspec.structs.replace(Report(), **{field: v}) for field in Report.__struct_fields__ for v in EXTREMES]


@pytest.mark.parametrize("kind", [*c.FROM_MEMBERS, *c.FROM_RENDEZVOUS])
def test_each_field_has_bounds(kind):
    assert unbounded(kind) == []


def test_there_is_an_example_of_each_kind():
    assert {type(one) for one in (*FROM_MEMBERS, *FROM_RENDEZVOUS)} == {*c.FROM_MEMBERS, *c.FROM_RENDEZVOUS}


def arrived(message):
    """The message as the other side reads it; None when the frame was refused."""
    try:
        (read,) = c.FrameReader().feed(c.framed(message))
    except InvalidMessage:
        return None
    return read


def owner_of_three():
    owner = GroupOwner(3, Patience())
    for name in "abc":
        owner.join(c.JoinMessage(name=name, size=3, address=WHERE), 0.0)
    for name in "abc":
        owner.take(name, c.HeldMessage(epoch=1, rounds=[], form=""), 1.0)
    return owner


def hear(owner, message):
    read = arrived(message)
    if read is None:
        return
    said = owner.take("a", read, 2.0)
    if isinstance(read, c.JoinMessage):
        reason, said = owner.join(read, 2.0)
        assert reason
    for _, answer in [*(said or []), *owner.check(3.0), *owner.check(60.0)]:
        assert len(c.framed(answer)) <= c.MAX_FRAME_BYTES


@settings(max_examples=200)
@given(mutations(FROM_MEMBERS))
def test_a_rendezvous_goes_on_whatever_a_member_says(message):
    hear(owner_of_three(), message)


@pytest.mark.parametrize("report", REPORTS)
def test_a_rendezvous_goes_on_whatever_a_report_says(report):
    hear(owner_of_three(), c.AliveMessage(report=report))


@settings(max_examples=200)
@given(mutations(FROM_RENDEZVOUS))
def test_a_member_refuses_in_words_or_goes_on_whatever_the_rendezvous_says(message):
    read = arrived(message)
    if read is None:
        return
    member = EpochMember("a")
    member.handle(c.order_of(FROM_RENDEZVOUS[3], "a", 1))
    member.handle(c.order_of(FROM_RENDEZVOUS[4], "a", 1))
    member.handle(RoundContributed(1))
    try:
        instructions = member.handle(c.order_of(read, "a", 1))
    except (PeerLost, LeftOut, ContributionRefused, InvalidInput):
        return  # GroupMember ends with it
    assert len(instructions) < 10


def test_a_commit_of_a_far_round_takes_no_time():
    member = EpochMember("a")
    member.handle(RoundContributed(1))
    assert len(member.handle(c.order_of(c.CommittedMessage(epoch=0, round=2**53 - 1), "a", 1))) == 1
