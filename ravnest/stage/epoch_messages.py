"""The messages about who takes part: by which an epoch of membership begins and a new cluster comes to train, and what
members have seen of each other's contributions.

In: what the driver decides when a cluster is lost or joins, and what each stage holds then. Out: typed headers, without
tensors. rounds/membership.py in ring_allreduce says what an epoch is; the other messages of a run are in messages.py.
"""

from typing import Annotated

import msgspec

from ravnest.stage.message_fields import MOST_NAMED, MOST_RINGS, MOST_ROUNDS, Names, Places, Rounds, Shares, Word
from ring_allreduce.transport import Count, Message, Name, at_most, between

Length = Annotated[float, between(0.0, 1e60)]
"""No vector of float32 numbers is longer."""

Cosine = Annotated[float, between(-1.0, 1.0)]
Weight = Annotated[float, between(0.0, 1e12)]
Digests = Annotated[tuple[Word, ...], at_most(4)]

# driver → stage


class RingDivision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the members of a ring divide its vector: the elements of a chunk, the part of each member's block (None for
    equal blocks), whether everyone sends to everyone, and where its groups begin (None: it has none)."""

    chunk_elements: Count
    shares: Shares | None
    direct: bool
    groups: Places | None = None


class ReformedRing(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One of a stage's rings in a new epoch: who is in it, in passing order, and how its vectors are divided.

    `divisions` has one for each vector of the segment, that of progress first. `keeper` says whether this stage sends
    the segment's anchor for checkpoints from now on.
    """

    ring: Count
    members: Names
    divisions: Annotated[tuple[RingDivision, ...], at_most(16)]
    keeper: bool


class PeerPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a stage of the run listens: its host, and a port for each lane."""

    stage: Name
    host: Annotated[str, at_most(253)]
    pipeline_port: Count
    bulk_port: Count


class RingsReformedMessage(Message, frozen=True, kw_only=True, tag="rings_reformed"):
    """An epoch of membership begins: the stage stops its rings, which become these, and answers with RoundsHeld.

    Every round up to `committed` is committed. `lost` names the stages that are in no ring any more. `peers` are all
    stages of the run from now on, where any of them is new.
    """

    epoch: Count
    committed: Count
    rings: Annotated[tuple[ReformedRing, ...], at_most(MOST_RINGS)]
    lost: Names
    peers: Annotated[tuple[PeerPlace, ...], at_most(8192)] = ()


class RoundsResumedMessage(Message, frozen=True, kw_only=True, tag="rounds_resumed"):
    """All stages are in `epoch`. Rounds that are not `kept` start again, from what was contributed.

    Each of `hand_on` is (ring, round, holder, to): the holder sends that average to those who lack it. The stage takes
    part from `first_round` on.
    """

    epoch: Count
    kept: Rounds
    hand_on: Annotated[tuple[tuple[Count, Count, Name, Names], ...], at_most(MOST_ROUNDS)]
    first_round: Count


class SendState(Message, frozen=True, kw_only=True, tag="send_state"):
    """The run has ended, and the stage is to send its state once more, for a checkpoint of `round`: the first try
    lacked what a lost stage had to send."""

    round: Count


class StandBy(Message, frozen=True, kw_only=True, tag="stand_by"):
    """It goes to a stage whose cluster is lost with another stage: it stops, is in no ring any more, and keeps its
    anchor and its optimizer's state. It joins again with the others of its cluster, in an epoch after `epoch`."""

    epoch: Count


class FollowRounds(Message, frozen=True, kw_only=True, tag="follow_rounds"):
    """It goes to a stage of a cluster that does not train yet, which is to take part, without weight, in all rounds up
    to `up_to`."""

    up_to: Count


class TrainFrom(Message, frozen=True, kw_only=True, tag="train_from"):
    """It goes to every stage of a cluster whose stages all hold the anchor: the cluster trains, and contributes by its
    gradients to the rounds after `round`. It has made `version` updates."""

    round: Count
    version: Count


class TakeOver(Message, frozen=True, kw_only=True, tag="take_over"):
    """Another driver takes the run over: from now on the stage hears and tells this one, which listens there.

    Each driver of a run has a higher `term` than the one before it, and its messages carry it as their epoch. The
    stage forgets what it was still to send to the one before, and answers with its StagePosition.
    """

    term: Count
    host: Annotated[str, at_most(253)]
    pipeline_port: Count
    bulk_port: Count


# stage → driver


class StagePosition(Message, frozen=True, kw_only=True, tag="stage_position"):
    """Where a stage is when another driver takes the run over.

    It has made `version` updates, knows of rounds up to `opened` and of commits up to `committed`, and is in this epoch
    of membership. `snapshots` has, for the rounds from the last merged one on, after how many updates it contributed to
    each. `evaluation` is the newest that it knows of; `drains` says whether it was told to begin nothing new.
    """

    term: Count
    version: Count
    opened: Count
    committed: Count
    epoch: Count
    snapshots: Annotated[tuple[tuple[Count, Count], ...], at_most(MOST_ROUNDS)]
    evaluation: Count
    drains: bool


class NoticeGiven(Message, frozen=True, kw_only=True, tag="notice_given"):
    """The stage's process was asked to end (SIGTERM): its node is about to be gone."""


class RoundsHeld(Message, frozen=True, kw_only=True, tag="rounds_held"):
    """The stage has stopped its rings and is in `epoch`. It holds the averages of these (ring, round)."""

    epoch: Count
    holding: Annotated[tuple[tuple[Count, Count], ...], at_most(MOST_ROUNDS)]


class ContributionsSeen(Message, frozen=True, kw_only=True, tag="contributions_seen"):
    """What the stage has seen of the contributions to a round of one of its rings, by member: the norm, the distance
    from the members' median, the cosine of the angle with it, and the weight. Robust averages see them.

    `digests`: of the same contributions, one for each vector that a robust rule averages. All members that were sent
    the same numbers tell the same ones; who took a whole average from another member tells none."""

    round: Count
    ring: Count
    epoch: Count
    members: Annotated[dict[Name, tuple[Length, Length, Cosine, Weight]], at_most(MOST_NAMED)]
    digests: Annotated[dict[Name, Digests], at_most(MOST_NAMED)]


MOST_REASON = 500
"""Characters of the reason for which a contribution cannot be averaged."""


class MemberRefused(Message, frozen=True, kw_only=True, tag="member_refused"):
    """The stage cannot average what another member of one of its rings gave: it waits for an epoch without that one.

    `round` is the last one that is committed as far as the stage knows."""

    round: Count
    ring: Count
    epoch: Count
    member: Name
    reason: Annotated[str, at_most(MOST_REASON)]


EPOCH_KINDS: tuple[type[Message], ...] = (
    RingsReformedMessage,
    RoundsResumedMessage,
    SendState,
    StandBy,
    FollowRounds,
    TrainFrom,
    TakeOver,
    StagePosition,
    NoticeGiven,
    RoundsHeld,
    ContributionsSeen,
    MemberRefused,
)
