"""Moves and averages vectors between peers. Knows no model, cluster or plan.

In: tensors of each member. Out: their weighted mean at all of them, or an error of one tree that names who is to blame.
A program by itself needs `Group`, `Rendezvous` and the keys. A run needs the doors of the folders, too:
`ring_allreduce.ring`, `ring_allreduce.rounds` and `ring_allreduce.transport`.
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
from ring_allreduce.group import Group, Rendezvous
from ring_allreduce.ring import RingReducer, RingSpec, RingStatistics
from ring_allreduce.rounds import Patience, Progress
from ring_allreduce.transport import (
    KeyPair,
    Keys,
    read_allow_list,
    read_key_pair,
    read_keys,
    write_allow_list,
    write_key_pair,
)

__all__ = [
    "ContributionRefused",
    "DeadlinePassed",
    "Group",
    "InvalidInput",
    "InvalidMessage",
    "KeyPair",
    "Keys",
    "LeftOut",
    "MessageTooLarge",
    "Patience",
    "PeerLost",
    "PeerStalled",
    "Progress",
    "RavnestError",
    "Rendezvous",
    "RingReducer",
    "RingSpec",
    "RingStatistics",
    "TransportError",
    "UnknownPeer",
    "read_allow_list",
    "read_key_pair",
    "read_keys",
    "write_allow_list",
    "write_key_pair",
]
