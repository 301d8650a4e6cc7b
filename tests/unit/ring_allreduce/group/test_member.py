"""A member of a group, with the group's owner at the other end of its line and no network between them."""

from collections import deque

import pytest
import torch

from ring_allreduce.errors import DeadlinePassed, InvalidInput, PeerLost
from ring_allreduce.group import control_messages as c
from ring_allreduce.group import member
from ring_allreduce.group.calls import Call, flatten
from ring_allreduce.group.liveness import Report
from ring_allreduce.group.member import Entry, GroupMember, GroupOptions, next_message
from ring_allreduce.group.owner import GroupOwner
from ring_allreduce.ring.messages import RING_KINDS
from ring_allreduce.rounds.deadlines import Patience
from ring_allreduce.transport.in_process import InProcessNetwork
from ring_allreduce.transport.message import Codec

WHERE = c.MemberAddress("127.0.0.1", 1, 2)


def options(size=1, on_loss="continue"):
    return GroupOptions("a", size, "127.0.0.1", 5.0, "exact", on_loss)


class OwnerLine:
    """A line to a GroupOwner that answers at once."""

    heard_s = 0.0

    def __init__(self, owner):
        self.owner, self.inbox, self.told = owner, deque(), []
        self.report = Report()
        self.closed = False

    def say(self, said):
        """Put what the owner says to this member into the inbox."""
        self.inbox += [message for names, message in said if "a" in names]

    def next(self, timeout_s=0.0):
        return self.inbox.popleft() if self.inbox else None

    def tell(self, message):
        self.told.append(message)
        self.say(self.owner.take("a", message, 0.0) or [])

    farewell = tell

    def close(self):
        self.closed = True


class Endpoint:
    """An endpoint of an in-process network that a member can close and wake."""

    def __init__(self):
        self._inner = InProcessNetwork().endpoint("a", Codec(RING_KINDS))

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def wake_on(self, descriptor):
        pass


def joined(monkeypatch, line, **changed):
    monkeypatch.setattr(member, "enter", lambda options, rendezvous, deadline_s: Entry(line, Endpoint(), 1.0))
    return GroupMember(options(**changed), ("desk", 29500))


@pytest.fixture
def line():
    line = OwnerLine(GroupOwner(1, Patience()))
    _, said = line.owner.join(c.JoinMessage(name="a", size=1, address=WHERE), 0.0)
    line.say(said)
    return line


def call_of(tensor):
    return Call([tensor], flatten([tensor]), 2.0, 5.0)


def test_a_member_answers_the_first_epoch_and_is_in(monkeypatch, line):
    here = joined(monkeypatch, line)
    assert (here.members, here.epoch, here.rounds, here.closed) == (("a",), 1, 0, False)
    assert line.told == [c.HeldMessage(epoch=1, rounds=[], form="")]


def test_a_call_is_over_once_its_round_is_committed(monkeypatch, line):
    here, tensor = joined(monkeypatch, line), torch.arange(4.0)
    assert [here.run(call_of(tensor)), here.run(call_of(tensor))] == [2.0, 2.0]
    assert tensor.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert (here.rounds, here.statistics().rounds) == (2, 2)
    assert [message.round for message in line.told if isinstance(message, c.FinishedMessage)] == [1, 2]
    assert line.report.round == 0, "it is inside average() no more"


def test_a_vector_for_the_numbers_is_used_again_while_it_fits(monkeypatch, line):
    here = joined(monkeypatch, line)
    first = here.flat(4, torch.float32)
    assert here.flat(4, torch.float32) is first
    assert here.flat(5, torch.float64).shape == (5,)


def test_a_closed_member_has_closed_its_line_and_gives_no_vector(monkeypatch, line):
    here = joined(monkeypatch, line)
    here.close()
    here.close()
    assert here.closed
    assert line.closed
    with pytest.raises(InvalidInput, match="closed"):
        here.flat(4, torch.float32)


def test_an_order_that_cannot_be_done_is_the_fault_of_the_rendezvous(monkeypatch, line):
    here = joined(monkeypatch, line)
    line.owner = SecondEpoch()
    line.inbox.append(c.ReformedMessage(epoch=2, members={"a": WHERE}, committed=0, lost={}))
    hand_on = [c.HandingOn(round=1, holder="a", to=["b"])]
    line.inbox.append(c.ResumedMessage(epoch=2, kept=[1], hand_on=hand_on, first_round=1))
    with pytest.raises(PeerLost, match="what it ordered cannot be done"):
        here.run(call_of(torch.ones(4)))
    assert here.closed


@pytest.mark.parametrize(("on_loss", "goes_on"), [("continue", True), ("fail", False)])
def test_a_loss_ends_a_group_that_was_told_to_fail(monkeypatch, line, on_loss, goes_on):
    here = joined(monkeypatch, line, on_loss=on_loss)
    line.inbox.append(c.ReformedMessage(epoch=2, members={"a": WHERE}, committed=0, lost={"b": "it died"}))
    line.inbox.append(c.ResumedMessage(epoch=2, kept=[], hand_on=[], first_round=1))
    if goes_on:
        line.owner = SecondEpoch()
        assert here.run(call_of(torch.ones(4))) == 2.0
        assert here.epoch == 2
    else:
        with pytest.raises(PeerLost, match="it died"):
            here.run(call_of(torch.ones(4)))


class SecondEpoch:
    """An owner that commits what is finished."""

    def take(self, name, message, now_s):
        if not isinstance(message, c.FinishedMessage):
            return []
        return [([name], c.CommittedMessage(epoch=message.epoch, round=message.round))]


def test_a_rendezvous_that_says_nothing_is_waited_for_until_the_deadline(line):
    line.inbox.clear()
    with pytest.raises(DeadlinePassed, match="an answer of the rendezvous"):
        next_message(line, options(), 0.0, "an answer of the rendezvous")
