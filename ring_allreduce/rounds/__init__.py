"""Many rings as one round: when it opens, who takes part, when it is committed, and what a merge does to the weights.

In: events (samples reported, ring finished, member lost). Out: instructions (open, commit, merge), in round order.
"""

from ring_allreduce.rounds.deadlines import SILENCE_FLOOR_S, Patience, SilenceDeadline
from ring_allreduce.rounds.events import (
    CommitRound,
    FailRun,
    FinishRequested,
    MemberFinished,
    MemberLost,
    MergeRound,
    OpenRound,
    OwnerEvent,
    OwnerInstruction,
    RingFinished,
    RoundCommitted,
    RoundKey,
    SamplesReported,
)
from ring_allreduce.rounds.member import EpochMember, RoundMember
from ring_allreduce.rounds.membership import RoundMembership
from ring_allreduce.rounds.outer_optimizer import Nesterov
from ring_allreduce.rounds.owner import RoundOwner
from ring_allreduce.rounds.progress import Progress

__all__ = [
    "SILENCE_FLOOR_S",
    "CommitRound",
    "EpochMember",
    "FailRun",
    "FinishRequested",
    "MemberFinished",
    "MemberLost",
    "MergeRound",
    "Nesterov",
    "OpenRound",
    "OwnerEvent",
    "OwnerInstruction",
    "Patience",
    "Progress",
    "RingFinished",
    "RoundCommitted",
    "RoundKey",
    "RoundMember",
    "RoundMembership",
    "RoundOwner",
    "SamplesReported",
    "SilenceDeadline",
]
