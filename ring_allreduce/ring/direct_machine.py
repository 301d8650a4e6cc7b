"""The direct machine: one member's part in one round in which everyone sends its part to everyone. Sans-I/O.

In: the events of ring/events.py. Out: its instructions, as with the ring machine; the whole vector is one block. A
direct exchange takes one hop instead of the ring's 2(n − 1), and each member sends n − 1 vectors instead of 2(n − 1)/n.
It serves small vectors, and two members always (`ring_timing.divide`). Every member adds the same parts in the same
order, so that all hold the same bytes.
"""

import math
from collections.abc import Sequence

from ring_allreduce.errors import InvalidInput
from ring_allreduce.ring.events import (
    ChunkArrived,
    ContributionReady,
    DropChunk,
    FinishRing,
    HoldChunk,
    RefuseChunk,
    RingEvent,
    RingInstruction,
    ScaleOwn,
    SendChunk,
    StoreOwn,
    SumChunks,
)
from ring_timing import layout_of


class DirectMachine:
    """One member of one direct exchange in one round. It has the same methods as `RingMachine`."""

    def __init__(
        self,
        members: Sequence[str],
        me: str,
        elements: int,
        chunk_elements: int,
        round: int,  # noqa: A002 - our word
        epoch: int,
    ) -> None:
        """`members` in the order in which parts are added, the same everywhere."""
        if me not in members or len(set(members)) != len(members):
            raise InvalidInput(f"{me!r} must be among the members, and nobody twice: {list(members)}")
        self.members = tuple(members)
        self.round = round
        self.epoch = epoch
        self.finished = False
        self.received = 0
        """Chunks that arrived and had an effect."""
        self._me = me
        self._others = tuple(member for member in members if member != me)
        self._layout = layout_of(elements, 1, chunk_elements)
        self._own: ContributionReady | None = None
        self._said: dict[str, tuple[float, tuple[int, ...]]] = {}
        self._missing: dict[int, set[str]] = {}
        self._here: set[tuple[str, int]] = set()
        self._sums = 0

    @property
    def expected(self) -> int:
        """Return the number of chunks that are to arrive in all."""
        return len(self._others) * self._layout.chunk_count()

    @property
    def waits_for(self) -> str | None:
        """Return the first member of whom a chunk is missing, or None when it finished or I have not contributed."""
        if self.finished or self._own is None:
            return None
        spans = [start for start, _ in self._layout.chunks(0)]
        return next(who for who in self._others if any((who, start) not in self._here for start in spans))

    def handle(self, event: RingEvent, now_s: float) -> list[RingInstruction]:
        """Return the instructions that answer `event`, in order. Chunks that are duplicated, stale or wrong change
        nothing.
        """
        if isinstance(event, ContributionReady):
            return self._contribute(event)
        verdict = self._judge(event)
        if verdict:
            return [verdict]
        self.received += 1
        self._said[event.sender] = event.weight, event.counters
        self._here.add((event.sender, event.start))
        self._missing.setdefault(event.start, set(self._others)).discard(event.sender)
        hold = HoldChunk(event.sender, 0, event.start, event.stop)
        return [hold, *self._sum_when_complete(event.start, event.stop)]

    def _contribute(self, own: ContributionReady) -> list[RingInstruction]:
        if self._own is not None:
            raise InvalidInput(f"a member contributes once to round {self.round}")
        if not (math.isfinite(own.weight) and own.weight >= 0):
            raise InvalidInput(f"a weight must be finite and at least 0, got {own.weight}")
        self._own = own
        if not self._others:
            self.finished = True
            return [StoreOwn(), FinishRing(own.weight, own.counters)]
        for sender, (_, counters) in self._said.items():
            if len(counters) != len(own.counters):
                return [RefuseChunk(sender, _counters_differ(counters, own))]
        instructions: list[RingInstruction] = []
        spans = self._layout.chunks(0)
        for start, stop in spans:
            instructions += [
                ScaleOwn(start, stop),
                *(SendChunk(to, "direct", 0, start, stop, own.weight, own.counters) for to in self._others),
                HoldChunk(self._me, 0, start, stop),
            ]
        for start, stop in spans:
            instructions += self._sum_when_complete(start, stop)
        return instructions

    def _sum_when_complete(self, start: int, stop: int) -> list[RingInstruction]:
        if self._own is None or start not in self._missing or self._missing[start]:
            return []
        said = [(self._own.weight, self._own.counters) if who == self._me else self._said[who] for who in self.members]
        # In the members' order, as the parts: all report the same total.
        total = 0.0
        for weight, _ in said:
            total += weight
        self._sums += 1
        if self._sums < self._layout.chunk_count():
            return [SumChunks(start, stop, total)]
        self.finished = True
        counters = tuple(map(max, *(counters for _, counters in said)))
        return [SumChunks(start, stop, total), FinishRing(total, counters)]

    def _judge(self, chunk: ChunkArrived) -> DropChunk | RefuseChunk | None:
        """Return why a chunk has no effect, or None when it is one that was waited for."""
        if chunk.epoch != self.epoch:
            return DropChunk(chunk.sender, f"epoch {chunk.epoch}, not {self.epoch}")
        if chunk.round != self.round:
            return DropChunk(chunk.sender, f"round {chunk.round}, not {self.round}")
        if chunk.sender not in self._others:
            return RefuseChunk(chunk.sender, "not another member of this exchange")
        if chunk.phase != "direct":
            return RefuseChunk(chunk.sender, "it averages in a ring, this member exchanges directly")
        if not self._layout.has_chunk(chunk.block, chunk.start, chunk.stop):
            span = f"block {chunk.block} [{chunk.start}, {chunk.stop})"
            return RefuseChunk(chunk.sender, f"{span} is no chunk of {self._layout}")
        if not (math.isfinite(chunk.weight) and chunk.weight >= 0):
            return RefuseChunk(chunk.sender, f"weight {chunk.weight}")
        if self._own is not None and len(chunk.counters) != len(self._own.counters):
            return RefuseChunk(chunk.sender, _counters_differ(chunk.counters, self._own))
        said = chunk.weight, chunk.counters
        if self._said.get(chunk.sender, said) != said:
            return RefuseChunk(chunk.sender, f"weight and counters {said}, after {self._said[chunk.sender]}")
        if (chunk.sender, chunk.start) in self._here:
            return DropChunk(chunk.sender, "a chunk that was there before")
        return None


def _counters_differ(counters: tuple[int, ...], own: ContributionReady) -> str:
    return f"{len(counters)} counters, not {len(own.counters)}"
