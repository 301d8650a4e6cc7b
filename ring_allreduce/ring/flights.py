"""The rings of one member that are in flight: what their machines instruct is done here, and sent through the outbox.

Decides nothing: which rounds may begin is the reducer's, what happens in one the machine's.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from ring_allreduce.errors import ContributionRefused, InvalidInput
from ring_allreduce.ring.buffer_pool import BufferPool
from ring_allreduce.ring.checks import checked
from ring_allreduce.ring.events import (
    ChunkArrived,
    ContributionReady,
    DropChunk,
    FinishRing,
    RefuseChunk,
    RingInstruction,
    SendChunk,
)
from ring_allreduce.ring.executor import Arithmetic, RingExecutor, RingSpec
from ring_allreduce.ring.messages import Chunk
from ring_allreduce.ring.statistics import Burst, RingStatistics
from ring_allreduce.ring.uncommitted_rounds import RingContribution, RingResult, RoundKey, UncommittedRounds
from ring_allreduce.transport.endpoint import Delivery, Endpoint
from ring_allreduce.transport.outbox import Outbox


class Flights:
    """Every (ring, round) that has begun at this member and is not finished."""

    def __init__(
        self,
        endpoint: Endpoint,
        kept: UncommittedRounds,
        outbox: Outbox,
        spare: BufferPool,
        drops: Counter[str],
        now: Callable[[], float],
    ) -> None:
        """`drops` counts chunks that had no effect, by reason."""
        self.stats: defaultdict[str, RingStatistics] = defaultdict(RingStatistics)
        """By ring."""
        self._endpoint = endpoint
        self._kept = kept
        self._outbox = outbox
        self._spare = spare
        self._drops = drops
        self._now = now
        self._flights: dict[RoundKey, RingExecutor] = {}

    def begin(self, spec: RingSpec, round: int, contribution: RingContribution) -> RingResult | None:  # noqa: A002 - our word
        """Contribute, for the first time or again after a restart; the average, if that was all that it lacked.

        Raises InvalidInput, and changes nothing, for a weight that cannot be.
        """
        key = spec.name, round
        flight = self._flight(spec, round)
        event = ContributionReady(contribution.weight, contribution.counters)
        flight.begun_s = now_s = self._now()
        instructions = flight.machine.handle(event, now_s)
        if key not in self._kept.contributions:
            contribution.carry = self._kept.take_carry(spec.name)
            self._kept.contributions[key] = contribution
        flight.begin(contribution)
        return self._follow(flight, instructions)

    def take(self, spec: RingSpec, delivery: Delivery, chunk: Chunk) -> RingResult | None:
        """Take a chunk; the average, if it was the last one. Raises ContributionRefused, which names the sender."""
        weight = 1.0 if chunk.phase == "gather" else chunk.weight
        payload = checked(delivery, chunk, spec.wire, spec.dtype, weight)
        flight = self._flight(spec, chunk.round)
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
        flight.arrive(payload)
        now_s, before = self._now(), flight.machine.received
        result = self._follow(flight, flight.machine.handle(event, now_s))
        if flight.machine.received > before:
            self._count(flight, delivery, chunk, now_s)
        return result

    def abandon(self, key: RoundKey) -> None:
        """Give up what is unfinished."""
        flight = self._flights.pop(key, None)
        if flight is None:
            return
        contribution = self._kept.contributions.get(key)
        if contribution:
            # If others complete the round without this member, everything that it had to send was sent.
            contribution.residual = flight.residual
        if flight.average is not None:
            self._spare.forget(flight.average)  # peers of the epoch that ended may still read what it lent them

    def keys(self) -> list[RoundKey]:
        """(ring, round) of each."""
        return list(self._flights)

    def items(self) -> list[tuple[RoundKey, RingExecutor]]:
        """Each with its (ring, round), in order."""
        return sorted(self._flights.items(), key=lambda item: item[0])

    def _flight(self, spec: RingSpec, round: int) -> RingExecutor:  # noqa: A002 - our word
        key = spec.name, round
        flight = self._flights.get(key)
        if flight is None:
            machine = spec.machine(self._endpoint.name, round, self._endpoint.epoch)
            flight = self._flights[key] = RingExecutor(spec, machine, self._spare)
        return flight

    def _follow(self, flight: RingExecutor, instructions: Sequence[RingInstruction]) -> RingResult | None:
        result: RingResult | None = None
        refused: RefuseChunk | None = None
        for instruction in instructions:
            if isinstance(instruction, FinishRing):
                result = self._finish(flight, instruction)
            elif isinstance(instruction, DropChunk):
                self._drops[instruction.reason] += 1
            elif isinstance(instruction, RefuseChunk):
                refused = instruction
            else:
                self._do(flight, instruction)
        if refused:
            raise ContributionRefused(refused.sender, flight.spec.name, flight.machine.round, refused.reason)
        return result

    def _do(self, flight: RingExecutor, instruction: Arithmetic | SendChunk) -> None:
        try:
            if isinstance(instruction, SendChunk):
                self._send(flight, instruction)
            else:
                flight.compute(instruction)
        except InvalidInput as error:
            # What came was checked: numbers that the wire cannot carry came in here.
            me = self._endpoint.name
            raise ContributionRefused(me, flight.spec.name, flight.machine.round, str(error)) from None

    def _send(self, flight: RingExecutor, send: SendChunk) -> None:
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
        tensors = flight.tensors(send)
        flight.sent += 1
        self.stats[header.ring].bytes_sent += sum(tensor.nbytes for tensor in tensors)
        self._outbox.put(send.to, header, tensors)

    def _finish(self, flight: RingExecutor, finish: FinishRing) -> RingResult:
        key = flight.spec.name, flight.machine.round
        now_s = self._now()
        begun_s = now_s if flight.begun_s is None else flight.begun_s
        begun = (each.begun_s for (ring, _), each in self._flights.items() if ring == key[0])
        first_s = min((each_s for each_s in begun if each_s is not None), default=begun_s)
        self.stats[key[0]].finish(begun_s, first_s, now_s)
        del self._flights[key]
        self._kept.contributions[key].residual = flight.residual
        return RingResult(*key, flight.room(), finish.total_weight, finish.counters)

    def _count(self, flight: RingExecutor, delivery: Delivery, chunk: Chunk, now_s: float) -> None:
        stats, n_bytes = self.stats[chunk.ring], sum(tensor.nbytes for tensor in delivery.tensors)
        stats.bytes_received += n_bytes
        sender = delivery.sender
        if chunk.phase == "direct" or (chunk.phase == "reduce" and flight.spec.members[chunk.block] == sender):
            rate = flight.bursts.setdefault(sender, Burst()).add(n_bytes, now_s)
            if rate is not None:
                stats.hops[sender] = rate
