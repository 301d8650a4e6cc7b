"""Many rings as one round: when it opens, who takes part, when it is committed, and what a merge does to the weights.

In: events (samples reported, ring finished, member lost). Out: instructions (open, commit, merge), in round order.
"""

from ring_allreduce.rounds.deadlines import SILENCE_FLOOR_S, AwakeTime, Patience, SilenceDeadline
from ring_allreduce.rounds.events import (
    AcceptAverage,
    ClusterJoined,
    CommitRound,
    EpochInstruction,
    FailRun,
    FinishRequested,
    HandOn,
    LeaveOut,
    MemberFinished,
    MemberHeld,
    MemberLost,
    MergeRound,
    OpenRound,
    OwnerEvent,
    OwnerInstruction,
    Reform,
    ReformRings,
    ReportFinished,
    ReportHeld,
    RestartRound,
    Resume,
    ReturnGivenUp,
    RingFinished,
    RoundContributed,
    RoundKey,
    RoundRequested,
    SamplesReported,
    SendAverage,
)
from ring_allreduce.rounds.member import EpochMember
from ring_allreduce.rounds.membership import RoundMembership
from ring_allreduce.rounds.outer_optimizer import Nesterov
from ring_allreduce.rounds.owner import RoundOwner, RoundsUnderWay
from ring_allreduce.rounds.progress import Progress

__all__ = [
    "SILENCE_FLOOR_S",
    "AcceptAverage",
    "AwakeTime",
    "ClusterJoined",
    "CommitRound",
    "EpochInstruction",
    "EpochMember",
    "FailRun",
    "FinishRequested",
    "HandOn",
    "LeaveOut",
    "MemberFinished",
    "MemberHeld",
    "MemberLost",
    "MergeRound",
    "Nesterov",
    "OpenRound",
    "OwnerEvent",
    "OwnerInstruction",
    "Patience",
    "Progress",
    "Reform",
    "ReformRings",
    "ReportFinished",
    "ReportHeld",
    "RestartRound",
    "Resume",
    "ReturnGivenUp",
    "RingFinished",
    "RoundContributed",
    "RoundKey",
    "RoundMembership",
    "RoundOwner",
    "RoundRequested",
    "RoundsUnderWay",
    "SamplesReported",
    "SendAverage",
    "SilenceDeadline",
]
