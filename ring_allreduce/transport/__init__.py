"""Moves typed messages with tensors between named peers, in two lanes. Bytes travel nowhere else.

In: messages for peers whose addresses are known. Out: deliveries, and counts of what was sent, received and dropped.
"""

from ring_allreduce.transport.emulation.links import EmulatedDownlink, EmulatedUplink, LinkShape, NodeShape
from ring_allreduce.transport.endpoint import Delivery, Endpoint, PeerAddress, TransportLimits
from ring_allreduce.transport.in_process import InProcessEndpoint, InProcessNetwork
from ring_allreduce.transport.message import Codec, Message
from ring_allreduce.transport.outbox import Outbox
from ring_allreduce.transport.security.keys import (
    KeyPair,
    Keys,
    read_allow_list,
    read_key_pair,
    read_keys,
    write_allow_list,
    write_key_pair,
)
from ring_allreduce.transport.stats import DropCause, Lane, Lateness, Traffic, TransportStats
from ring_allreduce.transport.zmq.zmq_endpoint import ZmqEndpoint

__all__ = [
    "Codec",
    "Delivery",
    "DropCause",
    "EmulatedDownlink",
    "EmulatedUplink",
    "Endpoint",
    "InProcessEndpoint",
    "InProcessNetwork",
    "KeyPair",
    "Keys",
    "Lane",
    "Lateness",
    "LinkShape",
    "Message",
    "NodeShape",
    "Outbox",
    "PeerAddress",
    "Traffic",
    "TransportLimits",
    "TransportStats",
    "ZmqEndpoint",
    "read_allow_list",
    "read_key_pair",
    "read_keys",
    "write_allow_list",
    "write_key_pair",
]
