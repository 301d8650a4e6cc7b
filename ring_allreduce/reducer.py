"""The rings of one member in motion: buffers, arithmetic and sending for the ring machines, on one endpoint.

Owns the accumulating vectors of every (ring, round) in flight and does what the machines instruct; decides
nothing about rounds (when they open, when they are merged). It never waits: the owner of the endpoint polls,
hands in what arrived, and calls pump() after each poll.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from ring_allreduce.errors import ContributionRefused, InvalidInput, PeerStalled
from ring_allreduce.flight import Flight, RingSpec, is_finite
from ring_allreduce.messages import Chunk
from ring_allreduce.ring import Ring
from ring_allreduce.ring_events import (
    ChunkArrived,
    ContributionReady,
    DropChunk,
    FinishRing,
    RefuseChunk,
    RingInstruction,
    SendChunk,
)
from ring_allreduce.transport.endpoint import Delivery, Endpoint
from ring_allreduce.transport.stats import Lane


@dataclass(frozen=True)
class RingResult:
    """The average of one ring in one round. Read `average`, never write to it: parts may still be leaving."""

    ring: str
    round: int
    average: Tensor
    total_weight: float
    counters: tuple[int, ...]


class RingReducer:
    """Averages vectors over this member's rings. Belongs to the thread that owns `endpoint`."""

    def __init__(
        self,
        endpoint: Endpoint,
        rings: Sequence[RingSpec],
        *,
        max_rounds: int,
        first_round: int = 1,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_rounds`: how many rounds of a ring may be in flight (max_lag): what bounds the memory.

        `endpoint`'s codec knows RING_KINDS, and its peers are connected before the first contribution.
        """
        if max_rounds < 1 or len({spec.name for spec in rings}) != len(rings):
            raise InvalidInput(f"a reducer needs max_rounds >= 1 (got {max_rounds}) and no ring twice")
        for spec in rings:
            if not spec.dtype.is_floating_point or endpoint.name not in spec.members:
                raise InvalidInput(f"ring {spec.name!r} needs a floating dtype and {endpoint.name!r} in it: {spec}")
        self._endpoint = endpoint
        self._specs = {spec.name: spec for spec in rings}
        self._max_rounds = max_rounds
        self._now = now
        self._flights: dict[tuple[str, int], Flight] = {}
        # Per ring: every round up to this one is finished here, and those beyond that are.
        self._finished_to = {spec.name: first_round - 1 for spec in rings}
        self._finished_beyond: dict[str, set[int]] = {spec.name: set() for spec in rings}
        self._outbox: dict[str, deque[tuple[Flight, SendChunk]]] = {}
        self._results: list[RingResult] = []
        self.drops: Counter[str] = Counter()
        """Chunks that had no effect and did no harm, by reason."""

    def contribute(
        self,
        round: int,  # noqa: A002 - our word
        ring: str,
        vector: Tensor,
        weight: float,
        counters: tuple[int, ...] = (),
    ) -> None:
        """Give this member's part to a ring: `vector` (elements,), flat; `weight`: the samples behind it.

        `vector` is kept, not copied: read it, never write to it, until the ring has finished. Raises
        InvalidInput for a part of the wrong form, ContributionRefused (naming this member) when it is not
        finite.
        """
        flight = self._own_flight(round, ring)
        spec = flight.spec
        if vector.shape != (spec.elements,) or vector.dtype != spec.dtype:
            expected = f"{spec.dtype} ({spec.elements},)"
            raise InvalidInput(f"ring {ring!r} expects {expected}, got {vector.dtype} {tuple(vector.shape)}")
        if not is_finite(vector):
            raise ContributionRefused(self._endpoint.name, ring, round, "it holds NaN or infinite numbers")
        instructions = flight.machine.handle(ContributionReady(weight, counters), self._now())
        flight.own, flight.weight = vector.detach(), weight
        self._follow(flight, instructions, None)
        self.pump()

    def on_delivery(self, delivery: Delivery) -> bool:
        """Take what arrived; False when it is no chunk of a ring (and nothing was done).

        Raises ContributionRefused, naming the sender, for a chunk that disagrees with this member or is not
        finite. Chunks that are merely late or repeated are counted in `drops`. Either way they have no
        effect.
        """
        chunk = delivery.message
        if not isinstance(chunk, Chunk):
            return False
        flight = self._flight_of(delivery.sender, chunk)
        if flight is None:
            return True
        arrived = self._checked(delivery, chunk, flight.spec)
        event = ChunkArrived(
            delivery.sender,
            delivery.epoch,
            chunk.round,
            chunk.phase,
            chunk.block,
            chunk.start,
            chunk.stop,
            chunk.weight,
            chunk.counters,
        )
        self._follow(flight, flight.machine.handle(event, self._now()), arrived)
        self.pump()
        return True

    def pump(self) -> None:
        """Send the chunks that the endpoint had no room for. Call it after each poll()."""
        for peer, waiting in self._outbox.items():
            while waiting:
                flight, send = waiting[0]
                header = Chunk(
                    ring=flight.spec.name,
                    round=flight.machine.round,
                    phase=send.phase,
                    block=send.block,
                    start=send.start,
                    stop=send.stop,
                    weight=send.weight,
                    counters=send.counters,
                )
                try:
                    self._endpoint.send(peer, Lane.BULK, header, [flight.room()[send.start : send.stop]])
                except PeerStalled:
                    break
                waiting.popleft()

    def finished(self) -> list[RingResult]:
        """The averages that became whole since the last call, in the order in which they did."""
        results, self._results = self._results, []
        return results

    def waiting_for(self) -> list[tuple[str, int, str]]:
        """(ring, round, member whose chunks are missing) of what I contributed to, for error messages."""
        flights = sorted(self._flights.items())
        return [(*key, who) for key, flight in flights if (who := flight.machine.waits_for) is not None]

    def _own_flight(self, round: int, ring: str) -> Flight:  # noqa: A002 - our word
        if ring not in self._specs:
            raise InvalidInput(f"{ring!r} is none of this member's rings {sorted(self._specs)}")
        if self._is_finished(ring, round) or not self._in_window(ring, round):
            raise InvalidInput(
                f"round {round} of ring {ring!r} is finished, or more than {self._max_rounds} ahead of "
                f"round {self._finished_to[ring]}, up to which all are"
            )
        return self._flight(ring, round)

    def _flight_of(self, sender: str, chunk: Chunk) -> Flight | None:
        """Where a chunk belongs; None when its round has finished here."""
        if chunk.ring not in self._specs:
            raise ContributionRefused(sender, chunk.ring, chunk.round, "this member is not in the ring")
        if self._is_finished(chunk.ring, chunk.round):
            self.drops["of a finished round"] += 1
            return None
        if not self._in_window(chunk.ring, chunk.round):
            reason = f"more than {self._max_rounds} rounds ahead of round {self._finished_to[chunk.ring]}"
            raise ContributionRefused(sender, chunk.ring, chunk.round, reason)
        return self._flight(chunk.ring, chunk.round)

    def _flight(self, ring: str, round: int) -> Flight:  # noqa: A002 - our word
        key = (ring, round)
        if key not in self._flights:
            spec = self._specs[ring]
            me, epoch = self._endpoint.name, self._endpoint.epoch
            machine = Ring(spec.members, me, spec.elements, spec.chunk_elements, round, epoch)
            self._flights[key] = Flight(spec, machine)
        return self._flights[key]

    def _is_finished(self, ring: str, round: int) -> bool:  # noqa: A002 - our word
        return round <= self._finished_to[ring] or round in self._finished_beyond[ring]

    def _in_window(self, ring: str, round: int) -> bool:  # noqa: A002 - our word
        # A round is committed only when all have finished it, and nobody contributes max_lag beyond a commit.
        return round <= self._finished_to[ring] + self._max_rounds

    def _checked(self, delivery: Delivery, chunk: Chunk, spec: RingSpec) -> Tensor:
        def refuse(reason: str) -> ContributionRefused:
            return ContributionRefused(delivery.sender, chunk.ring, chunk.round, reason)

        if len(delivery.tensors) != 1:
            raise refuse(f"{len(delivery.tensors)} tensors in a chunk")
        (arrived,) = delivery.tensors
        if arrived.shape != (chunk.stop - chunk.start,) or arrived.dtype != spec.dtype:
            span = f"[{chunk.start}, {chunk.stop})"
            raise refuse(f"{arrived.dtype} {tuple(arrived.shape)} for {spec.dtype} {span}")
        if not is_finite(arrived):
            raise refuse("it holds NaN or infinite numbers")
        return arrived

    def _follow(self, flight: Flight, instructions: Sequence[RingInstruction], arrived: Tensor | None) -> None:
        refused: RefuseChunk | None = None
        for instruction in instructions:
            match instruction:
                case SendChunk():
                    self._outbox.setdefault(instruction.to, deque()).append((flight, instruction))
                case FinishRing():
                    self._finish(flight, instruction)
                case DropChunk():
                    self.drops[instruction.reason] += 1
                case RefuseChunk():
                    refused = instruction
                case _:
                    flight.compute(instruction, arrived)
        if refused:
            machine = flight.machine
            raise ContributionRefused(refused.sender, flight.spec.name, machine.round, refused.reason)

    def _finish(self, flight: Flight, finish: FinishRing) -> None:
        ring, round_ = flight.spec.name, flight.machine.round
        self._results.append(RingResult(ring, round_, flight.room(), finish.total_weight, finish.counters))
        del self._flights[ring, round_]
        beyond = self._finished_beyond[ring]
        beyond.add(round_)
        while self._finished_to[ring] + 1 in beyond:
            self._finished_to[ring] += 1
            beyond.discard(self._finished_to[ring])
