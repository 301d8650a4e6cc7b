"""What a rendezvous says, as orders; and what it cannot say without ending the group."""

import math

import pytest

from ring_allreduce.errors import ContributionRefused, InvalidInput, LeftOut, PeerLost
from ring_allreduce.group import control_messages as c
from ring_allreduce.group.control_messages import RING, order_of, peer_address, welcome_of
from ring_allreduce.rounds import events as ev
from ring_allreduce.transport.endpoint import PeerAddress

HERE = c.MemberAddress("127.0.0.1", 1, 2)


@pytest.mark.parametrize(
    ("message", "order"),
    [
        (
            c.ReformedMessage(epoch=2, members={"b": HERE, "a": HERE}, committed=3, lost={"c": "killed"}),
            ev.Reform(2, {RING: ("b", "a")}, 3, {"c": "killed"}),
        ),
        (
            c.ResumedMessage(epoch=2, kept=[4], hand_on=[c.HandingOn(4, "b", ["a"])], first_round=5),
            ev.Resume(2, (4,), ((RING, 4, "b", ("a",)),), {"a": 5}),
        ),
        (c.CommittedMessage(epoch=2, round=4), ev.CommitRound(4, 2)),
    ],
    ids=lambda one: type(one).__name__,
)
def test_orders(message, order):
    assert order_of(message, "a", 1) == order


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (c.PutOutMessage(epoch=2, reason="silent", refused=False), LeftOut),
        (c.PutOutMessage(epoch=2, reason="5 numbers for 6", refused=True), ContributionRefused),
        (c.RefusedMessage(reason="a member has that name"), InvalidInput),
        (c.ReformedMessage(epoch=2, members={"b": HERE}, committed=0, lost={}), PeerLost),
        (c.LeavingMessage(reason=""), PeerLost),
    ],
    ids=lambda one: getattr(one, "__name__", type(one).__name__),
)
def test_ends(message, error):
    with pytest.raises(error):
        order_of(message, "a", 1)


def test_who_is_left_out_is_told_the_epoch():
    with pytest.raises(LeftOut, match="left out since epoch 7: silent") as caught:
        order_of(c.PutOutMessage(epoch=7, reason="silent", refused=False), "a", 1)
    assert (caught.value.epoch, caught.value.member) == (7, "a")


def test_a_welcome_says_how_often_to_give_signs_of_life():
    welcome = c.WelcomeMessage(token=b"t", alive_every_s=1.0)
    assert welcome_of(welcome, "a") == welcome
    for every_s in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(PeerLost):
            welcome_of(c.WelcomeMessage(token=b"t", alive_every_s=every_s), "a")
    with pytest.raises(InvalidInput, match="complete"):
        welcome_of(c.RefusedMessage(reason="the group is complete"), "a")
    with pytest.raises(PeerLost):
        welcome_of(c.CommittedMessage(epoch=1, round=1), "a")


def test_addresses():
    assert peer_address(HERE) == PeerAddress("127.0.0.1", 1, 2)
