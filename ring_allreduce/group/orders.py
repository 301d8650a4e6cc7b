"""What a rendezvous says to a member, as events of epoch_member.py; or as the error that ends the group here.

Pure. Nothing that comes over the network is used before it was checked.
"""

import math

from ring_allreduce.errors import ContributionRefused, InvalidInput, LeftOut, PeerLost
from ring_allreduce.group.control_messages import (
    CommittedMessage,
    MemberAddress,
    PutOutMessage,
    ReformedMessage,
    RefusedMessage,
    ResumedMessage,
    WelcomeMessage,
)
from ring_allreduce.group.owner import RING
from ring_allreduce.rounds.events import CommitRound, Reform, Resume
from ring_allreduce.transport.endpoint import PeerAddress
from ring_allreduce.transport.message import Message

RENDEZVOUS = "rendezvous"


def welcome_of(message: Message, me: str) -> WelcomeMessage:
    """The first answer to `me`. Raises InvalidInput for a refusal, PeerLost for what no rendezvous of ours says."""
    if not isinstance(message, WelcomeMessage):
        order_of(message, me, 1)
        raise PeerLost(RENDEZVOUS, f"it answered with {message}")
    if not 0 < message.alive_every_s < math.inf:
        raise PeerLost(RENDEZVOUS, f"it wants a sign of life every {message.alive_every_s} s")
    return message


def order_of(message: Message, me: str, next_round: int) -> Reform | Resume | CommitRound:
    """What `message` orders `me`, whose `next_round` is under way.

    Raises LeftOut or ContributionRefused when the others go on without me, InvalidInput when I cannot join, PeerLost
    for what no rendezvous of ours says.
    """
    match message:
        case ReformedMessage():
            if me not in message.members:
                raise PeerLost(RENDEZVOUS, f"it told {me!r} of epoch {message.epoch}, in which it is not")
            return Reform(message.epoch, {RING: tuple(message.members)}, message.committed, message.lost)
        case ResumedMessage():
            hand_on = tuple((RING, order.round, order.holder, tuple(order.to)) for order in message.hand_on)
            return Resume(message.epoch, tuple(message.kept), hand_on, {me: message.first_round})
        case CommittedMessage():
            return CommitRound(message.round, message.epoch)
        case PutOutMessage(refused=True):
            raise ContributionRefused(me, RING, next_round, message.reason)
        case PutOutMessage():
            raise LeftOut(me, message.epoch, message.reason)
        case RefusedMessage():
            raise InvalidInput(f"the rendezvous refused {me!r}: {message.reason}")
        case _:
            raise PeerLost(RENDEZVOUS, f"it sent {type(message).__name__} out of turn")


def peer_address(where: MemberAddress) -> PeerAddress:
    """Where a member listens, as the transport has it."""
    return PeerAddress(where.host, where.pipeline_port, where.bulk_port)
