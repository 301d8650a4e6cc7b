"""The in-process twin of the real transport: deterministic, without threads and sockets, with a clock from outside.

Messages pass through the same envelope, the same links and the same checks as on the wire, so what would be dropped
there is dropped here. A tensor is copied when it is sent, unless it lies in memory that its endpoint lends: that is
read where it lies, as by peers on one machine. poll() never waits: a test moves its own clock. Where no link is
emulated, the bound on queued messages counts the receiver's whole inbox in that lane.
"""

import ctypes
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from ring_allreduce.errors import InvalidInput, PeerStalled, UnknownPeer
from ring_allreduce.transport.emulation.emulated_node import EmulatedNode
from ring_allreduce.transport.emulation.links import LinkShape, NodeShape
from ring_allreduce.transport.endpoint import Delivery, PeerAddress, TransportLimits
from ring_allreduce.transport.envelope import TOKEN_BYTES, Envelope, open_delivery
from ring_allreduce.transport.message import Codec, Message
from ring_allreduce.transport.stats import Lane, Lateness, TransportStats

Frames = list[memoryview]


class InProcessNetwork:
    """The endpoints of one simulated run, and the links between them."""

    def __init__(
        self,
        *,
        now: Callable[[], float] = lambda: 0.0,
        links: Mapping[tuple[str, str], LinkShape] | None = None,
        nodes: Mapping[str, NodeShape] | None = None,
        limits: TransportLimits = TransportLimits(),  # noqa: B008 - frozen
    ) -> None:
        """`now`: the virtual clock, in seconds. `links`: (sender, receiver) → shape; other pairs deliver at once.
        `nodes`: the uplinks and downlinks of some endpoints (emulated_node.py). `limits`: of all endpoints.
        """
        self.now = now
        self.limits = limits
        self._links = dict(links or {})
        self._nodes = dict(nodes or {})
        self._endpoints: dict[str, InProcessEndpoint] = {}

    def endpoint(self, name: str, codec: Codec, token: bytes = bytes(TOKEN_BYTES)) -> "InProcessEndpoint":
        """Make an endpoint. Raises InvalidInput when the name is taken."""
        if name in self._endpoints:
            raise InvalidInput(f"an endpoint named {name!r} is already on this network")
        endpoint = InProcessEndpoint(self, name, codec, token)
        self._endpoints[name] = endpoint
        return endpoint

    def connect_all(self) -> None:
        """Make every endpoint known to every other."""
        addresses = {name: endpoint.address for name, endpoint in self._endpoints.items()}
        for endpoint in self._endpoints.values():
            endpoint.connect(addresses)

    def surroundings(self, name: str, lateness: Lateness) -> EmulatedNode[Frames, Frames]:
        """Return the emulated node between the endpoint of that name and the others."""
        links = {receiver: shape for (sender, receiver), shape in self._links.items() if sender == name}
        return EmulatedNode(name, links, self._nodes.get(name), lateness)

    def find(self, name: str) -> "InProcessEndpoint | None":
        """Return the endpoint of that name, or None if it was closed, and what is sent to it is lost, as on a wire."""
        return self._endpoints.get(name)

    def remove(self, name: str) -> None:
        """Forget an endpoint. What is sent to it from now on is lost."""
        self._endpoints.pop(name, None)

    def next_due_s(self) -> float | None:
        """Return when the next message of any link is due, in seconds; None when all are empty."""
        times = [endpoint.next_due_s() for endpoint in self._endpoints.values()]
        return min((time for time in times if time is not None), default=None)

    def deliver_due(self) -> None:
        """Move every message that has crossed all emulated links by now into the inbox of its receiver."""
        for endpoint in list(self._endpoints.values()):
            endpoint.leave_due()
        for endpoint in list(self._endpoints.values()):
            endpoint.enter_due()


class InProcessEndpoint:
    """An `Endpoint` whose wire is a deque."""

    def __init__(self, network: InProcessNetwork, name: str, codec: Codec, token: bytes) -> None:
        self.name = name
        self.address = PeerAddress("in-process", 0, 0)
        self.epoch = 0
        self.stats = TransportStats()
        self._network = network
        self._envelope = Envelope(codec, token, network.limits.max_message_bytes)
        self._peers: set[str] = set()
        self._node = network.surroundings(name, self.stats.lateness)
        self._inbox: dict[Lane, deque[Frames]] = {lane: deque() for lane in Lane}
        self._lent: WeakValueDictionary[int, Tensor] = WeakValueDictionary()

    def connect(self, peers: Mapping[str, PeerAddress]) -> None:
        for peer in peers:
            if peer != self.name:
                self._peers.add(peer)

    def disconnect(self, peers: Iterable[str]) -> None:
        for peer in peers:
            self._peers.discard(peer)
            self._node.forget(peer)

    def empty(self, elements: int, dtype: torch.dtype) -> Tensor:
        """Return a vector that is read where it lies; below COPY_BELOW_BYTES it is copied on arrival."""
        vector = torch.empty(elements, dtype=dtype)
        self._lent[vector.data_ptr()] = vector
        return vector

    def send(self, peer: str, lane: Lane, message: Message, tensors: Sequence[Tensor] = ()) -> None:
        if peer not in self._peers:
            raise UnknownPeer(peer)
        parts, n_bytes = self._envelope.seal(self.name, self.epoch, message, tensors)
        shaped = self._node.shapes(peer)
        receiver = self._network.find(peer)
        queued = self.queued(peer, lane)
        if queued >= self._network.limits.queue_messages:
            raise PeerStalled(peer, lane.value, queued)
        frames = [self._frame(part) for part in parts]
        self.stats.sent[peer, lane].add(n_bytes)
        if shaped:
            self._node.push(peer, lane, frames, n_bytes, self._network.now())
        elif receiver:
            receiver.came(self.name, lane, frames)

    def queued(self, peer: str, lane: Lane) -> int:
        """See `Endpoint.queued`. Where no link is emulated, this is what waits in the receiver's inbox."""
        if self._node.shapes(peer):
            return self._node.queued(peer, lane)
        receiver = self._network.find(peer)
        return receiver.inbox_length(lane) if receiver else 0

    def poll(self, timeout_s: float) -> list[Delivery]:
        """Return what has arrived by now, PIPELINE first. It never waits, whatever `timeout_s` says."""
        self._network.deliver_due()
        deliveries = []
        for lane, inbox in self._inbox.items():
            while inbox:
                delivery = open_delivery(self._envelope, inbox.popleft(), self._peers, lane, self.stats)
                if delivery is not None:
                    deliveries.append(delivery)
        return deliveries

    def wake(self) -> None:
        """Do nothing, since poll() never waits."""

    def close(self) -> None:
        self._network.remove(self.name)

    def put(self, lane: Lane, frames: Frames) -> None:
        """Put raw frames into the inbox, as the wire would; tests put garbage."""
        self._inbox[lane].append(frames)

    def inbox_length(self, lane: Lane) -> int:
        """Return how many messages wait for poll()."""
        return len(self._inbox[lane])

    def next_due_s(self) -> float | None:
        """Return when the next message that this endpoint sent, or is about to receive, is due, in seconds."""
        return self._node.next_due_s()

    def came(self, sender: str, lane: Lane, frames: Frames) -> None:
        """Take a message that has come as far as this endpoint's downlink."""
        if self._node.delays(sender):
            self._node.came(sender, lane, frames, sum(frame.nbytes for frame in frames), self._network.now())
        else:
            self.put(lane, frames)

    def leave_due(self) -> None:
        """Hand over the messages that have crossed this endpoint's uplink and links."""
        for peer, lane, frames in self._node.left(self._network.now()):
            receiver = self._network.find(peer)
            if receiver:
                receiver.came(self.name, lane, frames)

    def enter_due(self) -> None:
        """Put into the inbox the messages that have crossed this endpoint's downlink."""
        for lane, frames in self._node.entered(self._network.now()):
            self.put(lane, frames)

    def _frame(self, part: bytes | memoryview) -> memoryview:
        view = memoryview(part).cast("B")
        if not view.readonly and view.nbytes:
            start = ctypes.addressof(ctypes.c_ubyte.from_buffer(view))
            for at, vector in self._lent.items():
                if at <= start and start + view.nbytes <= at + vector.nbytes:
                    return view
        return memoryview(bytearray(view))
