"""The ring machine: one member's part in one round of one ring. Sans-I/O; it moves spans, never numbers.

In: the events of ring/events.py. Out: its instructions (design §7).

Block b starts at member b, goes once around while each member adds its weighted part, and is complete at member b − 1,
who divides it by the total weight. Only that member divides, so that all members hold the same bytes. From there the
block goes around once more as it is, up to member b − 2. Chunks are independent: each goes on as soon as it has arrived
and been added, so both phases are pipelined. Every member sends 2(n − 1)/n of the vector.

The member before may be ahead of this one. Until this member's contribution is ready, the chunks of the member before
are held as they arrived: every block but this member's own, at most.
"""

from collections.abc import Sequence

from ring_allreduce.ring.events import (
    AddOwn,
    ChunkArrived,
    ContributionReady,
    DivideChunk,
    DropChunk,
    FinishRing,
    HoldChunk,
    Phase,
    RefuseChunk,
    RingInstruction,
    ScaleOwn,
    SendChunk,
    StoreChunk,
    TakeHeld,
)
from ring_allreduce.ring.round_part import RoundPart
from ring_timing import layout_of


class RingMachine(RoundPart):
    """One member of one ring in one round."""

    def __init__(
        self,
        members: Sequence[str],
        me: str,
        elements: int,
        chunk_elements: int,
        round: int,  # noqa: A002 - our word
        epoch: int,
        shares: tuple[float, ...] | None = None,
    ) -> None:
        """`members` in passing order, the same everywhere, as are `elements`, `chunk_elements` and `shares`."""
        super().__init__(members, me, layout_of(elements, len(members), chunk_elements, shares), round, epoch)
        self._size = len(members)
        self._me = members.index(me)
        self._before = members[self._me - 1]
        self._after = members[(self._me + 1) % self._size]
        self._early: dict[tuple[int, int], ChunkArrived] = {}
        self._reduced: set[tuple[int, int]] = set()
        self._final: set[tuple[int, int]] = set()
        self._missing = self._layout.chunk_count()
        self._total: tuple[float, tuple[int, ...]] = (0.0, ())

    @property
    def expected(self) -> int:
        """Return the number of chunks that are to arrive in all.

        These are partial sums of every block but mine, and final sums of all blocks but one.
        """
        if self._size == 1:
            return 0
        count = self._layout.chunk_count
        return 2 * count() - count(self._me) - count((self._me + 1) % self._size)

    @property
    def waits_for(self) -> str | None:
        """Whose chunks are missing: the member before me; None when it finished or I have not contributed."""
        return None if self.finished or self._own is None else self._before

    def begins_at(self, block: int, sender: str) -> bool:
        """Say whether `sender` is the member at which the block begins to go around."""
        return self.members[block] == sender

    def _take(self, chunk: ChunkArrived) -> list[RingInstruction]:
        if self._own is None:
            self._early[chunk.block, chunk.start] = chunk
            return [HoldChunk(chunk.sender, chunk.block, chunk.start, chunk.stop)]
        if chunk.phase == "reduce":
            return self._reduce(chunk, self._own)
        return self._gather(chunk)

    def _begin(self, own: ContributionReady) -> list[RingInstruction]:
        instructions: list[RingInstruction] = []
        for start, stop in self._layout.chunks(self._me):
            instructions.append(ScaleOwn(start, stop))
            instructions.append(self._send("reduce", self._me, start, stop, own.weight, own.counters))
        for chunk in self._early.values():
            if refusal := self.refuses_counters(chunk.sender, chunk.counters, own):
                instructions.append(refusal)
                continue
            instructions.append(TakeHeld(chunk.sender, chunk.block, chunk.start, chunk.stop))
            instructions += self._reduce(chunk, own)
        self._early.clear()
        return instructions

    def _reduce(self, chunk: ChunkArrived, own: ContributionReady) -> list[RingInstruction]:
        """My part is added to a partial sum, which goes to the next member, or is complete here."""
        block, start, stop = chunk.block, chunk.start, chunk.stop
        self._reduced.add((block, start))
        weight = chunk.weight + own.weight
        counters = tuple(map(max, chunk.counters, own.counters)) if own.counters else ()
        if block != (self._me + 1) % self._size:
            return [AddOwn(start, stop), self._send("reduce", block, start, stop, weight, counters)]
        return [
            AddOwn(start, stop),
            DivideChunk(start, stop, weight),
            StoreChunk(start, stop),
            self._send("gather", block, start, stop, weight, counters),
            *self._finalised(block, start, weight, counters),
        ]

    def _gather(self, chunk: ChunkArrived) -> list[RingInstruction]:
        block, start, stop = chunk.block, chunk.start, chunk.stop
        instructions: list[RingInstruction] = [StoreChunk(start, stop)]
        if block != (self._me + 2) % self._size:
            instructions.append(self._send("gather", block, start, stop, chunk.weight, chunk.counters))
        return instructions + self._finalised(block, start, chunk.weight, chunk.counters)

    def _finalised(self, block: int, start: int, weight: float, counters: tuple[int, ...]) -> list[RingInstruction]:
        self._final.add((block, start))
        self._missing -= 1
        if (block, start) == (0, 0):
            # Every block sums the weights in another order; all members report the sum of this one.
            self._total = weight, counters
        if self._missing:
            return []
        self.finished = True
        return [FinishRing(*self._total)]

    def _send(
        self, phase: Phase, block: int, start: int, stop: int, weight: float, counters: tuple[int, ...]
    ) -> SendChunk:
        return SendChunk(self._after, phase, block, start, stop, weight, counters)

    def _judge(self, chunk: ChunkArrived) -> DropChunk | RefuseChunk | None:
        if self._size == 1 or chunk.sender != self._before:
            return RefuseChunk(chunk.sender, "not the member before this one")
        return self._judge_content(chunk) or self._judge_order(chunk)

    def _judge_order(self, chunk: ChunkArrived) -> DropChunk | RefuseChunk | None:
        key = (chunk.block, chunk.start)
        if chunk.phase == "reduce":
            if chunk.block == self._me:
                return RefuseChunk(chunk.sender, f"block {chunk.block} starts at this member")
            repeated = key in self._reduced or key in self._early
        elif chunk.phase == "direct":
            return RefuseChunk(chunk.sender, "it exchanges directly, this member in a ring")
        else:
            if chunk.block == (self._me + 1) % self._size:
                return RefuseChunk(chunk.sender, f"block {chunk.block} is completed by this member")
            added_here = self._own is not None and (chunk.block == self._me or key in self._reduced)
            if not added_here:
                return RefuseChunk(chunk.sender, f"block {chunk.block} cannot be complete without this member")
            repeated = key in self._final
        return DropChunk(chunk.sender, "a chunk that was there before") if repeated else None
