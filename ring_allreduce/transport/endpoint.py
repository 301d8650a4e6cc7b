"""The interface of a transport: an endpoint that sends messages with tensors to named peers, in two lanes.

There are two implementations: `ZmqEndpoint`, which real runs use, and `InProcessNetwork.endpoint`, its deterministic
twin. The types that both take and return are here, too: addresses, limits and deliveries.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from ring_allreduce.errors import InvalidInput
from ring_allreduce.transport.message import Message
from ring_allreduce.transport.stats import Lane, TransportStats


@dataclass(frozen=True)
class PeerAddress:
    """Where a peer listens: one port for each lane."""

    host: str
    pipeline_port: int
    bulk_port: int

    def require_usable(self, peer: str) -> None:
        """Raises InvalidInput, which names `peer`, unless this can be an address: it may come from the network."""
        if not _HOST.fullmatch(self.host):
            raise InvalidInput(f"peer {peer!r} has no valid host: {self.host[:_MOST_HOST_CHARACTERS]!r}")
        for port in (self.pipeline_port, self.bulk_port):
            if not 0 < port < 65536:
                raise InvalidInput(f"peer {peer!r} has no valid ports: {self}")


_MOST_HOST_CHARACTERS = 253
_HOST = re.compile(rf"[A-Za-z0-9_.:%-]{{1,{_MOST_HOST_CHARACTERS}}}", re.ASCII)
"""A host name, an IPv4 address, or an IPv6 address without brackets and perhaps with its zone."""


@dataclass(frozen=True)
class TransportLimits:
    """The bounds on what an endpoint accepts and holds."""

    max_message_bytes: int = 1 << 30
    """The most that head and bodies of one message may have; send() refuses more, and more is dropped on arrival."""

    queue_messages: int = 1024
    """How many messages may wait for one peer in one lane before send() raises PeerStalled."""

    linger_s: float = 2.0
    """How long close() goes on sending what is still queued."""

    in_flight_bytes: Mapping[str, int] = field(default_factory=dict)
    """Peer → how many bytes TCP may hold at once in a lane to it (zmq/lanes.py). No bound for other peers."""


@dataclass(frozen=True)
class Delivery:
    """One message that arrived. `sender` is a connected peer; `epoch` is the epoch in which it was sent.

    Tensors last as long as somebody holds them. The receiver owns them and may write to them. Only where the sender is
    on this machine and lends them (`Endpoint.empty`), changes there are seen here until the receiver writes to them.
    """

    sender: str
    epoch: int
    message: Message
    tensors: tuple[Tensor, ...]


class Endpoint(Protocol):
    """The transport of one named member. All methods but wake() belong to one thread."""

    @property
    def name(self) -> str:
        """Return the member's name."""
        ...

    @property
    def address(self) -> PeerAddress:
        """Return where this endpoint listens; the peers need it for connect()."""
        ...

    @property
    def stats(self) -> TransportStats:
        """Counts since the endpoint was made."""
        ...

    epoch: int
    """The epoch of membership that everything sent carries. Deliveries of every epoch arrive: whoever owns the state
    that a message would change drops it where its epoch is over, as RingReducer does with chunks."""

    def connect(self, peers: Mapping[str, PeerAddress]) -> None:
        """Make `peers` known. A second call has no effect. A changed address replaces the old one; the own name is
        ignored.

        Raises InvalidInput, and changes nothing, when an address cannot be one; TransportError when the system cannot
        use an address.
        """
        ...

    def disconnect(self, peers: Iterable[str]) -> None:
        """Forget `peers`, and what is queued for them. What they send is dropped from now on. A second call has no
        effect.
        """
        ...

    def empty(self, elements: int, dtype: torch.dtype) -> Tensor:
        """Return a vector (elements,) with undefined content, which peers on this machine read where it lies when it is
        sent.

        What was sent of it must not change before the peers are done with it. That they have the message is not enough:
        something has to show that they need it no more. The memory lasts as long as anybody holds the vector, and a
        process made by fork has the same memory, not a copy.
        """
        ...

    def send(self, peer: str, lane: Lane, message: Message, tensors: Sequence[Tensor] = ()) -> None:
        """Queue a message. Never blocks.

        Large tensors travel without a copy: nobody may write to them afterwards, until something shows that the peer
        has them. Raises PeerStalled (nothing was queued; poll() returns early once there is room again), UnknownPeer,
        MessageTooLarge, or InvalidInput for a kind or dtype that cannot travel.
        """
        ...

    def queued(self, peer: str, lane: Lane) -> int:
        """Return how many messages for `peer` wait in a lane, or are on an emulated link to it."""
        ...

    def poll(self, timeout_s: float) -> list[Delivery]:
        """Send what is due and return what arrived, PIPELINE first; wait up to `timeout_s` when nothing has.

        It returns early, perhaps with an empty list, after wake() and when a stalled peer has room again.
        """
        ...

    def wake(self) -> None:
        """Make poll() return early. The only method that other threads may call."""
        ...

    def close(self) -> None:
        """Send what is queued for at most `linger_s`, then free everything. A second call has no effect."""
        ...
