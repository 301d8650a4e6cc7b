"""Named peers, two lanes, typed messages with tensors: the only place where bytes travel.

Knows peers, not stages, rings or actors; zmq is imported nowhere else.
"""

from ring_allreduce.transport.emulation import EmulatedLink, LinkShape
from ring_allreduce.transport.endpoint import Delivery, Endpoint, PeerAddress, TransportLimits
from ring_allreduce.transport.memory import InProcessEndpoint, InProcessNetwork
from ring_allreduce.transport.message import Codec, Message
from ring_allreduce.transport.stats import DropCause, Lane, Traffic, TransportStats
from ring_allreduce.transport.zmq_endpoint import ZmqEndpoint

__all__ = [
    "Codec",
    "Delivery",
    "DropCause",
    "EmulatedLink",
    "Endpoint",
    "InProcessEndpoint",
    "InProcessNetwork",
    "Lane",
    "LinkShape",
    "Message",
    "PeerAddress",
    "Traffic",
    "TransportLimits",
    "TransportStats",
    "ZmqEndpoint",
]
