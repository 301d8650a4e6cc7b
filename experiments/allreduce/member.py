"""One member's endpoint and its rings in a worker process: rounds as they are measured, one after another.

Between measurements the endpoint is polled on: what this member still has to send goes out, and chunks of a
measurement that others have begun already are kept for it.
"""

import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from experiments.allreduce.parameter_server import Averaged, Pushed, Span, push, serve
from ring_allreduce import PeerStalled, RingReducer, RingSpec
from ring_allreduce.ring import RING_KINDS, Chunk
from ring_allreduce.transport import Codec, Delivery, KeyPair, Keys, Lane, LinkShape, Message, PeerAddress, ZmqEndpoint

DEADLINE_S = 150.0
TOKEN = b"allreduce-tests!"


class Piece(Message, frozen=True, kw_only=True, tag="experiment_piece"):
    """Bytes of no meaning, to see what a link carries."""

    last: bool


class Member:
    """One endpoint, and the rings that ran on it."""

    def __init__(
        self,
        name: str,
        host: str,
        links: Mapping[str, Sequence[float]],
        keys: Mapping[str, Any] | None,
        *,
        shared: bool = True,
    ) -> None:
        """`links`: peer → (bytes/s, one-way latency in s) to pretend. `keys`: this member's pair and the allow-list.

        `shared`: whether memory is shared with members of this machine, instead of TCP.
        """
        shapes = {peer: LinkShape(rate, latency_s) for peer, (rate, latency_s) in links.items()}
        codec = Codec([*RING_KINDS, Piece, Pushed, Averaged])
        own = Keys(KeyPair(keys["public"], keys["secret"]), keys["allowed"]) if keys else None
        self.endpoint = ZmqEndpoint(
            name, codec=codec, token=TOKEN, host=host, links=shapes, keys=own, shared_memory=shared
        )
        self._reducer: RingReducer | None = None
        self._rings: set[str] = set()
        self._ahead: list[Delivery] = []
        self._vectors: dict[str, Tensor] = {}
        self._averages: dict[str, Tensor] = {}

    @property
    def address(self) -> list[Any]:
        where = self.endpoint.address
        return [where.host, where.pipeline_port, where.bulk_port]

    def connect(self, peers: Mapping[str, Sequence[Any]]) -> None:
        self.endpoint.epoch = 1
        self.endpoint.connect({name: PeerAddress(*where) for name, where in peers.items()})

    def rounds(self, rings: Sequence[Mapping[str, Any]], count: int, in_turn: bool, warm: int) -> dict[str, Any]:
        """Average this member's `rings` (RingSpecs as plain data, of new names) `count` times; how long that took.

        `in_turn`: one ring after another, each a measurement of its own, instead of all at once. `warm`: how many
        rounds go before that and are not counted: their memory is used again.
        """
        specs = [_spec(ring) for ring in rings]
        self._averages = {}
        self._vectors = vectors = {spec.name: self._vector(spec) for spec in specs}
        self._begin(specs)
        groups = [[spec] for spec in specs] if in_turn else [specs]
        averages: dict[str, Tensor] = {}
        sent, cpu_s, began_s = self._sent_bytes(), time.process_time(), time.monotonic()
        for number in range(1, warm + count + 1):
            if number == warm + 1:
                sent, cpu_s, began_s = self._sent_bytes(), time.process_time(), time.monotonic()
            for group in groups:
                averages |= self._round(number, [spec.name for spec in group], vectors)
            if number > 1 and self._reducer is not None:
                self._reducer.commit(number - 1)  # who has finished a round has all of the one before
        ended_s, cpu_s = time.monotonic(), time.process_time() - cpu_s
        self._averages = averages
        return {"began_s": began_s, "ended_s": ended_s, "cpu_s": cpu_s, "sent_bytes": self._sent_bytes() - sent}

    def digests(self) -> dict[str, str]:
        """By ring, of the averages measured last. Not part of rounds(): others may still wait for what is leaving."""
        return {ring: digest(average) for ring, average in self._averages.items()}

    def stream(self, to: str, n_bytes: int, piece_bytes: int) -> dict[str, Any]:
        """Send `n_bytes` to one peer in messages like chunks, and receive as many from the one before."""
        began_s = time.monotonic()
        left, done, piece = n_bytes, False, torch.zeros(piece_bytes, dtype=torch.uint8)
        while left or not done:
            while left:
                size = min(left, piece_bytes)
                try:
                    self.endpoint.send(to, Lane.BULK, Piece(last=left == size), [piece[:size]])
                except PeerStalled:
                    break
                left -= size
            for delivery in self.endpoint.poll(0.05):
                assert isinstance(delivery.message, Piece)
                done = done or delivery.message.last
            _check_time(began_s)
        return {"began_s": began_s, "ended_s": time.monotonic()}

    def serve(self, clients: Mapping[str, Span], chunks: Sequence[Span]) -> dict[str, Any]:
        """Be the parameter server."""
        began_s = time.monotonic()
        serve(self.endpoint, clients, chunks)
        return {"began_s": began_s, "ended_s": time.monotonic()}

    def push(self, server: str, span: Span, chunks: Sequence[Span]) -> dict[str, Any]:
        """Average elements [start, stop) = `span` by way of the parameter server."""
        vector = torch.zeros(span[1] - span[0])
        began_s = time.monotonic()
        push(self.endpoint, server, vector, chunks, span[0])
        return {"began_s": began_s, "ended_s": time.monotonic()}

    def idle(self, timeout_s: float) -> None:
        """Poll between measurements."""
        for delivery in self.endpoint.poll(timeout_s):
            message = delivery.message
            if self._reducer is not None and isinstance(message, Chunk) and message.ring in self._rings:
                self._reducer.on_delivery(delivery)
            else:
                self._ahead.append(delivery)
        if self._reducer is not None:
            self._reducer.pump()

    def _begin(self, specs: Sequence[RingSpec]) -> None:
        self._reducer = RingReducer(self.endpoint, specs, max_rounds=2)
        self._rings = {spec.name for spec in specs}
        ahead, self._ahead = self._ahead, []
        for delivery in ahead:
            self._reducer.on_delivery(delivery)

    def _round(self, number: int, rings: Sequence[str], vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        reducer = self._reducer
        assert reducer is not None
        for ring in rings:
            reducer.contribute(number, ring, vectors[ring], 1.0)
        missing, averages, began_s = set(rings), {}, time.monotonic()
        while True:
            for result in reducer.finished():
                missing.discard(result.ring)
                averages[result.ring] = result.average
            if not missing:
                return averages
            for delivery in self.endpoint.poll(1.0):
                reducer.on_delivery(delivery)
            reducer.pump()
            _check_time(began_s)

    def _vector(self, spec: RingSpec) -> Tensor:
        earlier = [vector for vector in self._vectors.values() if len(vector) == spec.elements]
        if earlier:
            return earlier[0]
        seed = int.from_bytes(hashlib.sha256(self.endpoint.name.encode()).digest()[:4])
        vector = self.endpoint.empty(spec.elements, spec.dtype)
        return vector.normal_(generator=torch.Generator().manual_seed(seed))

    def _sent_bytes(self) -> int:
        return sum(traffic.n_bytes for traffic in self.endpoint.stats.sent.values())


def digest(vector: Tensor) -> str:
    """By which members see that they hold the same bytes."""
    return hashlib.sha256(vector.contiguous().numpy().data).hexdigest()[:16]


def _spec(ring: Mapping[str, Any]) -> RingSpec:
    given = {**ring, "members": tuple(ring["members"])}
    if given.get("shares") is not None:
        given["shares"] = tuple(given["shares"])
    return RingSpec(**given)


def _check_time(began_s: float) -> None:
    if time.monotonic() - began_s > DEADLINE_S:
        raise TimeoutError(f"a measurement took more than {DEADLINE_S:g} s")
