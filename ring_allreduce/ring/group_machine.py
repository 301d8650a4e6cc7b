"""The group machine: one member's part in one round of a ring of rings. Sans-I/O; it moves spans, never numbers.

In: the events of ring/events.py. Out: its instructions, as with the ring machine. Which cell passes where is said by
`ring_timing.Groups`: each group sums a cell around its own ring, up to the cell's owner in that group. The owners pass
the groups' sums on among them. The last one divides, and the mean goes back among the owners and around each group.
Only one member divides a cell, so that all members hold the same bytes.

An owner adds what came from its group to its own part first, and then what came from the groups before, whichever
arrived first. So no order of arrival changes a byte.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ring_allreduce.ring.events import (
    AddHeld,
    AddOwn,
    ChunkArrived,
    ContributionReady,
    DivideChunk,
    DropChunk,
    FinishRing,
    HoldChunk,
    RefuseChunk,
    RingInstruction,
    ScaleOwn,
    SendChunk,
    StoreChunk,
    TakeHeld,
)
from ring_allreduce.ring.round_part import RoundPart
from ring_timing import Groups, layout_of

Sum = tuple[float, tuple[int, ...]]
"""The weight behind a partial sum, and the largest counters."""


@dataclass(frozen=True)
class _Way:
    """How one cell passes through this member; None: it does not come, or go, that way."""

    inner: str | None
    """Who of my group sends a partial sum."""
    outer: str | None
    """Which owner of the group before sends a partial sum."""
    reduced_to: str | None
    """Who gets my sum; None: it is complete here."""
    mean_from: str | None
    mean_to: tuple[str, ...]


class GroupMachine(RoundPart):
    """One member of one ring of rings in one round. It has the same methods as `RingMachine`."""

    def __init__(
        self,
        members: Sequence[str],
        me: str,
        elements: int,
        chunk_elements: int,
        round: int,  # noqa: A002 - our word
        epoch: int,
        firsts: tuple[int, ...],
    ) -> None:
        """`members` in passing order, the same everywhere, as are `elements`, `chunk_elements` and `firsts` (see
        `ring_timing.Groups`). Raises InvalidInput for groups that cannot be."""
        groups = Groups(len(members), firsts)
        super().__init__(members, me, layout_of(elements, groups.cells, chunk_elements), round, epoch)
        self._groups = groups
        self._ways = [self._way(cell) for cell in range(groups.cells)]
        self._early: dict[tuple[str, int, int], ChunkArrived] = {}
        self._came: set[tuple[str, int, int]] = set()
        self._waiting: dict[tuple[int, int], tuple[str, Sum]] = {}
        """By cell and start: the first of two partial sums, under whose name it is held, and what is behind it."""
        self._summed: set[tuple[int, int]] = set()
        self._final: set[tuple[int, int]] = set()
        self._missing = self._layout.chunk_count()
        self._total: Sum = (0.0, ())
        self._expected = self._count_expected()
        self._left = Counter(self._expected)

    @property
    def expected(self) -> int:
        """Return the number of chunks that are to arrive in all."""
        return sum(self._expected.values())

    @property
    def waits_for(self) -> str | None:
        """Return the first member of whom a chunk is missing, or None when it finished or I have not contributed."""
        if self.finished or self._own is None:
            return None
        return next((sender for sender, count in self._left.items() if count), None)

    def begins_at(self, block: int, sender: str) -> bool:
        """Say whether `sender` begins a cell: in a group the member after its owner, among the owners one that is a
        group by itself."""
        cell, start = divmod(block, len(self._groups.firsts))
        k, place = self._groups.place_of(self.members.index(sender))
        size = self._groups.sizes[k]
        return place == (cell + 1) % size and (size > 1 or k == start)

    def _way(self, cell: int) -> _Way:
        groups, names = self._groups, self.members
        block, start = divmod(cell, len(groups.firsts))
        k, place = groups.place_of(names.index(self.me))
        g, size = len(groups.firsts), groups.sizes[k]
        owner, last = block % size, (start - 1) % g
        before, after = names[groups.member(k, place - 1)], names[groups.member(k, place + 1)]
        inner = before if size > 1 and place != (owner + 1) % size else None
        if place != owner:
            passes_on = (place + 1) % size != owner
            return _Way(inner, None, after, before, (after,) if passes_on else ())
        owner_before, owner_after = names[groups.member((k - 1) % g, block)], names[groups.member((k + 1) % g, block)]
        mean_to = (owner_after,) if (k + 1) % g != last else ()
        return _Way(
            inner,
            owner_before if k != start else None,
            owner_after if k != last else None,
            owner_before if k != last else None,
            (*mean_to, after) if size > 1 else mean_to,
        )

    def _count_expected(self) -> Counter[str]:
        expected: Counter[str] = Counter()
        for cell, way in enumerate(self._ways):
            for sender in (way.inner, way.outer, way.mean_from):
                if sender is not None:
                    expected[sender] += self._layout.chunk_count(cell)
        return expected

    def _take(self, chunk: ChunkArrived) -> list[RingInstruction]:
        self._left[chunk.sender] -= 1
        key = chunk.sender, chunk.block, chunk.start
        if self._own is None:
            self._early[key] = chunk
            return [HoldChunk(*key, chunk.stop)]
        if chunk.phase == "reduce":
            return self._reduce(chunk, self._own)
        total = chunk.weight, chunk.counters
        span = chunk.start, chunk.stop
        return [StoreChunk(*span), *self._pass_on(chunk.block, *span, total), *self._finalised(chunk, total)]

    def _begin(self, own: ContributionReady) -> list[RingInstruction]:
        instructions: list[RingInstruction] = []
        for cell, way in enumerate(self._ways):
            if way.inner is None and way.outer is None:
                assert way.reduced_to is not None  # no group is alone
                for start, stop in self._layout.chunks(cell):
                    self._summed.add((cell, start))
                    sent = SendChunk(way.reduced_to, "reduce", cell, start, stop, own.weight, own.counters)
                    instructions += [ScaleOwn(start, stop), sent]
        for key, chunk in self._early.items():
            if refusal := self.refuses_counters(chunk.sender, chunk.counters, own):
                instructions.append(refusal)
                continue
            instructions += [TakeHeld(*key, chunk.stop), *self._reduce(chunk, own)]
        self._early.clear()
        return instructions

    def _reduce(self, chunk: ChunkArrived, own: ContributionReady) -> list[RingInstruction]:
        """A partial sum has arrived: my part is added to that of my group, or to the only one; then it goes on."""
        cell, start, stop = chunk.block, chunk.start, chunk.stop
        way, said = self._ways[cell], (chunk.weight, chunk.counters)
        self._came.add((chunk.sender, cell, start))
        added: list[RingInstruction] = []
        if way.inner in (chunk.sender, None):
            added, said = [AddOwn(start, stop)], _together(said, (own.weight, own.counters))
        if way.inner is not None and way.outer is not None:
            other = self._waiting.pop((cell, start), None)
            if other is None:
                held_as = self.me if added else chunk.sender
                self._waiting[cell, start] = held_as, said
                return [*added, HoldChunk(held_as, cell, start, stop)]
            added.append(AddHeld(other[0], cell, start, stop))
            said = _together(said, other[1]) if chunk.sender == way.inner else _together(other[1], said)
        self._summed.add((cell, start))
        if way.reduced_to is not None:
            return [*added, SendChunk(way.reduced_to, "reduce", cell, start, stop, *said)]
        return [
            *added,
            DivideChunk(start, stop, said[0]),
            StoreChunk(start, stop),
            *self._pass_on(cell, start, stop, said),
            *self._finalised(chunk, said),
        ]

    def _pass_on(self, cell: int, start: int, stop: int, total: Sum) -> list[RingInstruction]:
        return [SendChunk(to, "gather", cell, start, stop, *total) for to in self._ways[cell].mean_to]

    def _finalised(self, chunk: ChunkArrived, total: Sum) -> list[RingInstruction]:
        self._final.add((chunk.block, chunk.start))
        self._missing -= 1
        if (chunk.block, chunk.start) == (0, 0):
            # Every cell sums the weights in another order; all members report the sum of this one.
            self._total = total
        if self._missing:
            return []
        self.finished = True
        return [FinishRing(*self._total)]

    def _judge(self, chunk: ChunkArrived) -> DropChunk | RefuseChunk | None:
        if chunk.phase == "direct":
            return RefuseChunk(chunk.sender, "it exchanges directly, this member in groups")
        if refusal := self._judge_content(chunk):
            return refusal
        way, key = self._ways[chunk.block], (chunk.sender, chunk.block, chunk.start)
        if chunk.phase == "reduce":
            if chunk.sender not in (way.inner, way.outer):
                return RefuseChunk(chunk.sender, f"cell {chunk.block} does not come from there")
            repeated = key in self._came or key in self._early
        else:
            if chunk.sender != way.mean_from:
                return RefuseChunk(chunk.sender, f"the mean of cell {chunk.block} does not come from there")
            if (chunk.block, chunk.start) not in self._summed:
                return RefuseChunk(chunk.sender, f"cell {chunk.block} cannot be complete without this member")
            repeated = (chunk.block, chunk.start) in self._final
        return DropChunk(chunk.sender, "a chunk that was there before") if repeated else None


def _together(first: Sum, second: Sum) -> Sum:
    return first[0] + second[0], tuple(map(max, first[1], second[1])) if second[1] else ()
