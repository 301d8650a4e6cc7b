"""The messages by which a warm spare follows the rings of the stage that it shadows, and takes its place.

In: what the driver decides about warm spares. Out: typed headers, without tensors. The averages themselves travel by
ring_allreduce/ring/following.py, and the first anchor as to any stage that joins (donor_messages.py).
"""

from typing import Annotated, Final

import msgspec

from ravnest.stage.epoch_messages import PeerPlace
from ravnest.stage.message_fields import MOST_RINGS, Names
from ring_allreduce.transport import Count, Message, Text, at_most

Places = Annotated[tuple[PeerPlace, ...], at_most(8192)]

# driver → stage


class RingFollowers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who follows a ring, by the names of their endpoints."""

    ring: Count
    followers: Names


class Followers(Message, frozen=True, kw_only=True, tag="followers"):
    """From now on these follow the stage's rings, and nobody else does. `peers` has where they listen."""

    rings: Annotated[tuple[RingFollowers, ...], at_most(MOST_RINGS)]
    peers: Places


# driver → warm spare


class FollowFrom(Message, frozen=True, kw_only=True, tag="follow_from"):
    """The spare begins to follow, or begins anew: it is sent the averages of the rounds after `round`, and is to take
    the anchor of that round or a later one from donors. `peers` are the stages of the run."""

    epoch: Count
    round: Count
    peers: Places


class PeersMoved(Message, frozen=True, kw_only=True, tag="peers_moved"):
    """Some stages of the run listen elsewhere now."""

    peers: Places


class TakePlace(Message, frozen=True, kw_only=True, tag="take_place"):
    """The stage that the spare shadows is lost: the spare is that stage from now on, and joins in an epoch after
    `epoch`. Before that it merges the rounds up to `round`, as far as their averages come."""

    epoch: Count
    round: Count


# warm spare → driver


class FellBehind(Message, frozen=True, kw_only=True, tag="fell_behind"):
    """The spare misses something that does not come any more: it has to begin anew."""

    reason: Text


class PlaceTaken(Message, frozen=True, kw_only=True, tag="place_taken"):
    """The spare listens as the stage whose place it takes, at these ports of its host. It is its last message as a
    spare."""

    host: Annotated[str, at_most(253)]
    pipeline_port: Count
    bulk_port: Count


SHADOW_KINDS: Final = (Followers, FollowFrom, PeersMoved, TakePlace, FellBehind, PlaceTaken)
