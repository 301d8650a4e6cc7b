"""The direct machine: one member's part in one round in which everyone sends its part to everyone. Sans-I/O.

In: the events of ring/events.py. Out: its instructions, as with the ring machine; the whole vector is one block. A
direct exchange takes one hop instead of the ring's 2(n − 1), and each member sends n − 1 vectors instead of 2(n − 1)/n.
It serves small vectors, and two members always (`ring_timing.divide`). Every member adds the same parts in the same
order, so that all hold the same bytes.

It serves rules that have to see each member's part (robust_mean.py), too, for vectors of any size. Then a member sends
AHEAD chunks beyond the last one that it has summed, and no more. So a receiver holds AHEAD chunks of each honest
member, and not whole vectors while it waits for the slowest one's.
"""

from collections.abc import Sequence

from ring_allreduce.ring.events import (
    ChunkArrived,
    ContributionReady,
    DropChunk,
    FinishRing,
    HoldChunk,
    RefuseChunk,
    RingInstruction,
    ScaleOwn,
    SendChunk,
    SumChunks,
)
from ring_allreduce.ring.round_part import RoundPart
from ring_timing import layout_of

AHEAD = 4
"""Chunks of a member that others may hold until they can be summed, where each part has to be seen."""


class DirectMachine(RoundPart):
    """One member of one direct exchange in one round. It has the same methods as `RingMachine`."""

    def __init__(
        self,
        members: Sequence[str],
        me: str,
        elements: int,
        chunk_elements: int,
        round: int,  # noqa: A002 - our word
        epoch: int,
        *,
        each: bool = False,
    ) -> None:
        """`members` in the order in which parts are added, the same everywhere. `each`: the rule of the average has to
        see each member's part."""
        super().__init__(members, me, layout_of(elements, 1, chunk_elements), round, epoch)
        self._others = tuple(member for member in members if member != me)
        self._said: dict[str, tuple[float, tuple[int, ...]]] = {}
        self._missing: dict[int, set[str]] = {}
        self._here: set[tuple[str, int]] = set()
        self._sums = 0
        self._each = each
        self._unsent: list[tuple[int, int]] = []

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

    def begins_at(self, block: int, sender: str) -> bool:
        """Say that everyone sends its own part."""
        return True

    def _take(self, chunk: ChunkArrived) -> list[RingInstruction]:
        self._said[chunk.sender] = chunk.weight, chunk.counters
        self._here.add((chunk.sender, chunk.start))
        self._missing.setdefault(chunk.start, set(self._others)).discard(chunk.sender)
        hold = HoldChunk(chunk.sender, 0, chunk.start, chunk.stop)
        instructions = [hold, *self._sum_when_complete(chunk.start, chunk.stop)]
        while more := self._send_more():
            instructions += more
        return instructions

    def _begin(self, own: ContributionReady) -> list[RingInstruction]:
        for sender, (_, counters) in self._said.items():
            if refusal := self.refuses_counters(sender, counters, own):
                return [refusal]
        instructions: list[RingInstruction] = []
        spans = self._layout.chunks(0)
        self._unsent = list(reversed(spans))
        if self._each:
            while more := self._send_more():
                instructions += more
            return instructions
        for _ in spans:
            instructions += self._send_next()
        for start, stop in spans:
            instructions += self._sum_when_complete(start, stop)
        return instructions

    def _send_more(self) -> list[RingInstruction]:
        """Send the next chunk, and sum it if all others' are here; nothing while AHEAD chunks wait for others'."""
        sent = self._layout.chunk_count() - len(self._unsent)
        if not self._unsent or sent >= self._sums + AHEAD:
            return []
        start, stop = self._unsent[-1]
        return [*self._send_next(), *self._sum_when_complete(start, stop)]

    def _send_next(self) -> list[RingInstruction]:
        assert self._own is not None
        (start, stop), own = self._unsent.pop(), self._own
        return [
            ScaleOwn(start, stop),
            *(SendChunk(to, "direct", 0, start, stop, own.weight, own.counters) for to in self._others),
            HoldChunk(self.me, 0, start, stop),
        ]

    def _sum_when_complete(self, start: int, stop: int) -> list[RingInstruction]:
        """Sum the parts of a chunk where all are here, my own among them."""
        if self._own is None or start not in self._missing or self._missing[start]:
            return []
        if self._unsent and start >= self._unsent[-1][0]:
            return []
        said = [(self._own.weight, self._own.counters) if who == self.me else self._said[who] for who in self.members]
        # In the members' order, as the parts: all report the same total.
        total = 0.0
        for weight, _ in said:
            total += weight
        self._sums += 1
        summed = SumChunks(start, stop, total, tuple(weight for weight, _ in said) if self._each else ())
        if self._sums < self._layout.chunk_count():
            return [summed]
        self.finished = True
        counters = tuple(map(max, *(counters for _, counters in said)))
        return [summed, FinishRing(total, counters)]

    def _judge(self, chunk: ChunkArrived) -> DropChunk | RefuseChunk | None:
        if chunk.sender not in self._others:
            return RefuseChunk(chunk.sender, "not another member of this exchange")
        if chunk.phase != "direct":
            return RefuseChunk(chunk.sender, "it averages in a ring, this member exchanges directly")
        if refusal := self._judge_content(chunk):
            return refusal
        said = chunk.weight, chunk.counters
        if self._said.get(chunk.sender, said) != said:
            return RefuseChunk(chunk.sender, f"weight and counters {said}, after {self._said[chunk.sender]}")
        if (chunk.sender, chunk.start) in self._here:
            return DropChunk(chunk.sender, "a chunk that was there before")
        return None
