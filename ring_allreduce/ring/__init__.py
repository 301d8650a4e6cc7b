"""One ring: how chunks travel, and what a member computes in one round of it. `ring_timing` says how it is divided.

In: a ring's members and one contribution of each. Out: the same average at each member, or an error that names a peer.
"""

from ring_allreduce.ring.direct_machine import DirectMachine
from ring_allreduce.ring.events import (
    ChunkArrived,
    ContributionReady,
    DropChunk,
    FinishRing,
    RefuseChunk,
    RingEvent,
    SendChunk,
    parse_line,
    record,
)
from ring_allreduce.ring.executor import RingSpec
from ring_allreduce.ring.following import Feeding, FollowedRounds
from ring_allreduce.ring.group_machine import GroupMachine
from ring_allreduce.ring.messages import FOLLOWED_KINDS, RING_KINDS, Chunk, FollowedMissing, FollowedTaken, HandedOn
from ring_allreduce.ring.reducer import RingReducer
from ring_allreduce.ring.ring_machine import RingMachine
from ring_allreduce.ring.robust_mean import ROBUST_RULES, ContributionFigures, RobustRule
from ring_allreduce.ring.statistics import RingProgress, RingStatistics
from ring_allreduce.ring.uncommitted_rounds import RingResult
from ring_allreduce.ring.wire_forms import BLOCK, WIRES, Wire, bytes_per_element, decode, encode

__all__ = [
    "BLOCK",
    "FOLLOWED_KINDS",
    "RING_KINDS",
    "ROBUST_RULES",
    "WIRES",
    "Chunk",
    "ChunkArrived",
    "ContributionFigures",
    "ContributionReady",
    "DirectMachine",
    "DropChunk",
    "Feeding",
    "FinishRing",
    "FollowedMissing",
    "FollowedRounds",
    "FollowedTaken",
    "GroupMachine",
    "HandedOn",
    "RefuseChunk",
    "RingEvent",
    "RingMachine",
    "RingProgress",
    "RingReducer",
    "RingResult",
    "RingSpec",
    "RingStatistics",
    "RobustRule",
    "SendChunk",
    "Wire",
    "bytes_per_element",
    "decode",
    "encode",
    "parse_line",
    "record",
]
