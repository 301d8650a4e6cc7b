"""Moves typed messages with tensors between named peers, in two lanes. Bytes travel nowhere else.

In: messages for peers whose addresses are known. Out: deliveries, and counts of what was sent, received and dropped.
"""

from ring_allreduce.transport.emulation.links import EmulatedDownlink, EmulatedUplink, LinkShape, NodeShape
from ring_allreduce.transport.endpoint import Delivery, Endpoint, PeerAddress, TransportLimits
from ring_allreduce.transport.envelope import TOKEN_BYTES
from ring_allreduce.transport.in_process import InProcessEndpoint, InProcessNetwork
from ring_allreduce.transport.lines import LineClosed, LineEvent, LineOpened, Lines, LineSaid
from ring_allreduce.transport.message import (
    MOST_COUNT,
    ClockSeconds,
    Codec,
    Count,
    Message,
    Name,
    Seconds,
    Text,
    Unacceptable,
    at_most,
    between,
)
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
from ring_allreduce.transport.stats import (
    DropCause,
    Lane,
    Lateness,
    Strangers,
    Traffic,
    TransportStats,
    strangers_in_words,
)
from ring_allreduce.transport.zmq.zmq_endpoint import ZmqEndpoint

__all__ = [
    "MOST_COUNT",
    "TOKEN_BYTES",
    "ClockSeconds",
    "Codec",
    "Count",
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
    "LineClosed",
    "LineEvent",
    "LineOpened",
    "LineSaid",
    "Lines",
    "LinkShape",
    "Message",
    "Name",
    "NodeShape",
    "Outbox",
    "PeerAddress",
    "Seconds",
    "Strangers",
    "Text",
    "Traffic",
    "TransportLimits",
    "TransportStats",
    "Unacceptable",
    "ZmqEndpoint",
    "at_most",
    "between",
    "read_allow_list",
    "read_key_pair",
    "read_keys",
    "strangers_in_words",
    "write_allow_list",
    "write_key_pair",
]
