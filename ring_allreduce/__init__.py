"""Moves and averages vectors between peers. Knows no model, cluster or plan.

Alone:            Group, Rendezvous (group.py, rendezvous.py)
Inside a run:     RoundOwner, RoundMember (round_*.py), Progress (progress.py), RingReducer (reducer.py)
Underneath:       RingMachine, the sans-I/O machine (ring_machine.py); layout.py; transport/
"""

from ring_allreduce.errors import (
    ContributionRefused,
    DeadlinePassed,
    InvalidInput,
    InvalidMessage,
    LeftOut,
    MessageTooLarge,
    PeerLost,
    PeerStalled,
    RavnestError,
    TransportError,
    UnknownPeer,
)
from ring_allreduce.group.group import Group
from ring_allreduce.group.rendezvous import Rendezvous
from ring_allreduce.ring.events import parse_line
from ring_allreduce.ring.executor import RingSpec
from ring_allreduce.ring.messages import RING_KINDS, Chunk, HandedOn
from ring_allreduce.ring.reducer import RingProgress, RingReducer
from ring_allreduce.ring.ring_machine import RingMachine
from ring_allreduce.ring.statistics import RingStatistics
from ring_allreduce.ring.uncommitted_rounds import RingResult
from ring_allreduce.rounds.deadlines import Patience
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
    SamplesReported,
)
from ring_allreduce.rounds.member import RoundMember
from ring_allreduce.rounds.outer_optimizer import Nesterov
from ring_allreduce.rounds.owner import RoundOwner
from ring_allreduce.rounds.progress import Progress
from ring_allreduce.transport import (
    Codec,
    Delivery,
    DropCause,
    Endpoint,
    InProcessNetwork,
    KeyPair,
    Keys,
    Lane,
    LinkShape,
    Message,
    PeerAddress,
    TransportLimits,
    TransportStats,
    ZmqEndpoint,
    read_allow_list,
    read_key_pair,
    read_keys,
    write_allow_list,
    write_key_pair,
)

__all__ = [
    "RING_KINDS",
    "Chunk",
    "Codec",
    "CommitRound",
    "ContributionRefused",
    "DeadlinePassed",
    "Delivery",
    "DropCause",
    "Endpoint",
    "FailRun",
    "FinishRequested",
    "Group",
    "HandedOn",
    "InProcessNetwork",
    "InvalidInput",
    "InvalidMessage",
    "KeyPair",
    "Keys",
    "Lane",
    "LeftOut",
    "LinkShape",
    "MemberFinished",
    "MemberLost",
    "MergeRound",
    "Message",
    "MessageTooLarge",
    "Nesterov",
    "OpenRound",
    "OwnerEvent",
    "OwnerInstruction",
    "Patience",
    "PeerAddress",
    "PeerLost",
    "PeerStalled",
    "Progress",
    "RavnestError",
    "Rendezvous",
    "RingFinished",
    "RingMachine",
    "RingProgress",
    "RingReducer",
    "RingResult",
    "RingSpec",
    "RingStatistics",
    "RoundCommitted",
    "RoundMember",
    "RoundOwner",
    "SamplesReported",
    "TransportError",
    "TransportLimits",
    "TransportStats",
    "UnknownPeer",
    "ZmqEndpoint",
    "parse_line",
    "read_allow_list",
    "read_key_pair",
    "read_keys",
    "write_allow_list",
    "write_key_pair",
]
