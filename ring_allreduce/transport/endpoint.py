"""What a transport offers: named peers, two lanes, messages with tensors. The interface only; no socket here.

Two implementations: `ZmqEndpoint` (real) and `InProcessNetwork.endpoint` (its deterministic twin).
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
        """Raises InvalidInput, which names `peer`, for what cannot be an address: it may come from the network."""
        if not _HOST.fullmatch(self.host):
            raise InvalidInput(f"peer {peer!r} has no valid host: {self.host[:_MOST_HOST_CHARACTERS]!r}")
        for port in (self.pipeline_port, self.bulk_port):
            if not 0 < port < 65536:
                raise InvalidInput(f"peer {peer!r} has no valid ports: {self}")


_MOST_HOST_CHARACTERS = 253
_HOST = re.compile(rf"[A-Za-z0-9_.:%-]{{1,{_MOST_HOST_CHARACTERS}}}", re.ASCII)
"""A name, an IPv4 address, or an IPv6 address without brackets and perhaps with its zone."""


@dataclass(frozen=True)
class TransportLimits:
    """Bounds on what an endpoint accepts and holds."""

    max_message_bytes: int = 1 << 30
    """Head and bodies of one message; larger ones are refused by send() and dropped on arrival."""

    queue_messages: int = 1024
    """Messages that may wait for one peer in one lane before send() raises PeerStalled."""

    linger_s: float = 2.0
    """How long close() goes on sending what is still queued."""

    in_flight_bytes: Mapping[str, int] = field(default_factory=dict)
    """Of a lane to a peer on another machine, how much TCP may hold at once (zmq/lanes.py); others: as it likes."""


@dataclass(frozen=True)
class Delivery:
    """One message that arrived. `sender` is a connected peer; `epoch` is the one it was sent in.

    Tensors last as long as somebody holds them. They are the receiver's, who may write to them, unless the sender, on
    this machine, lends them (`Endpoint.empty`): what changes there is seen here, until it is written to here.
    """

    sender: str
    epoch: int
    message: Message
    tensors: tuple[Tensor, ...]


class Endpoint(Protocol):
    """One named member's door to its peers. All methods but wake() belong to one thread."""

    @property
    def name(self) -> str: ...

    @property
    def address(self) -> PeerAddress:
        """Where this endpoint listens: give it to the peers."""
        ...

    @property
    def stats(self) -> TransportStats: ...

    epoch: int
    """Stamped on everything sent; deliveries of an older epoch are dropped and counted."""

    def connect(self, peers: Mapping[str, PeerAddress]) -> None:
        """Make `peers` known. Idempotent; a changed address replaces the old one; the own name is skipped.

        Raises InvalidInput, and changes nothing, when one of the addresses cannot be one; TransportError when the
        system cannot use one.
        """
        ...

    def disconnect(self, peers: Iterable[str]) -> None:
        """Forget `peers`, and what is queued for them; what they send is dropped from now on. Idempotent."""
        ...

    def empty(self, elements: int, dtype: torch.dtype) -> Tensor:
        """A vector (elements,) of any content, which peers of this machine read where it lies when it is sent.

        What was sent of it must not change before the peers are done with it: not when they have the message, but when
        something shows that they need it no more. It lasts as long as anybody holds it, and a process made by fork has
        the same memory, not a copy.
        """
        ...

    def send(self, peer: str, lane: Lane, message: Message, tensors: Sequence[Tensor] = ()) -> None:
        """Queue a message. Never blocks.

        Large tensors travel without a copy: do not write to them afterwards, until something shows that the
        peer has them. Raises PeerStalled (nothing was queued; poll() returns early once there is room again),
        UnknownPeer, MessageTooLarge, or InvalidInput for a kind or dtype that cannot travel.
        """
        ...

    def poll(self, timeout_s: float) -> list[Delivery]:
        """Send what is due and return what arrived, PIPELINE first; waits up to `timeout_s` when nothing has.

        Returns early, perhaps with an empty list, after wake() and when a stalled peer has room again.
        """
        ...

    def wake(self) -> None:
        """Make poll() return early. The only method that other threads may call."""
        ...

    def close(self) -> None:
        """Send what is queued for at most `linger_s`, then free everything. Idempotent."""
        ...
