"""One member's part in one round: what the ring machine and the direct machine have in common. Sans-I/O.

In: the members, the layout of the vector in chunks, and the events of ring/events.py. Out: the checks that hold for
every chunk and for the member's own contribution, whichever way the chunks take.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ring_allreduce.errors import InvalidInput
from ring_allreduce.ring.events import (
    ChunkArrived,
    ContributionReady,
    DropChunk,
    FinishRing,
    RefuseChunk,
    RingEvent,
    RingInstruction,
    StoreOwn,
    require_weight,
    weight_fits,
)
from ring_timing import Layout


class RoundPart(ABC):
    """One member of one averaging in one round. A subclass says which way the chunks take."""

    def __init__(
        self,
        members: Sequence[str],
        me: str,
        layout: Layout,
        round: int,  # noqa: A002 - our word
        epoch: int,
    ) -> None:
        """`members` in an order that is the same everywhere. Raises InvalidInput unless `me` is one of them, once."""
        if me not in members or len(set(members)) != len(members):
            raise InvalidInput(f"{me!r} must be among the members, and nobody twice: {list(members)}")
        self.members = tuple(members)
        self.me = me
        self.round = round
        self.epoch = epoch
        self.finished = False
        self.received = 0
        """Chunks that arrived and had an effect."""
        self._layout = layout
        self._own: ContributionReady | None = None

    def handle(self, event: RingEvent, now_s: float) -> list[RingInstruction]:
        """Return the instructions that answer `event`, in order.

        Chunks that are duplicated, stale or wrong change nothing. Raises InvalidInput for a second contribution, or
        one whose weight is out of bounds.
        """
        if isinstance(event, ContributionReady):
            return self._contribute(event)
        verdict = self._judge_round(event) or self._judge(event)
        if verdict:
            return [verdict]
        self.received += 1
        return self._take(event)

    def _contribute(self, own: ContributionReady) -> list[RingInstruction]:
        if self._own is not None:
            raise InvalidInput(f"a member contributes once to round {self.round}")
        require_weight(own.weight)
        self._own = own
        if len(self.members) == 1:
            self.finished = True
            return [StoreOwn(), FinishRing(own.weight, own.counters)]
        return self._begin(own)

    def _judge_round(self, chunk: ChunkArrived) -> DropChunk | None:
        """Return why a chunk is not of this round, or None when it is."""
        if chunk.epoch != self.epoch:
            return DropChunk(chunk.sender, f"epoch {chunk.epoch}, not {self.epoch}")
        if chunk.round != self.round:
            return DropChunk(chunk.sender, f"round {chunk.round}, not {self.round}")
        return None

    def _judge_content(self, chunk: ChunkArrived) -> RefuseChunk | None:
        """Return why no member could have sent such a chunk, or None when one could."""
        if not self._layout.has_chunk(chunk.block, chunk.start, chunk.stop):
            span = f"block {chunk.block} [{chunk.start}, {chunk.stop})"
            return RefuseChunk(chunk.sender, f"{span} is no chunk of {self._layout}")
        others = len(self.members) - 1
        if not weight_fits(chunk.weight, {"direct": 1, "reduce": others}.get(chunk.phase, others + 1)):
            return RefuseChunk(chunk.sender, f"weight {chunk.weight}")
        return None if self._own is None else self.refuses_counters(chunk.sender, chunk.counters, self._own)

    @staticmethod
    def refuses_counters(sender: str, counters: tuple[int, ...], own: ContributionReady) -> RefuseChunk | None:
        """Return the refusal of a chunk of `sender` with another number of counters than `own`; None if it has as
        many.
        """
        if len(counters) == len(own.counters):
            return None
        return RefuseChunk(sender, f"{len(counters)} counters, not {len(own.counters)}")

    @abstractmethod
    def begins_at(self, block: int, sender: str) -> bool:
        """Say whether a partial sum of a block that comes from `sender` is its own part alone, which has waited for
        nobody's."""

    @abstractmethod
    def _begin(self, own: ContributionReady) -> list[RingInstruction]:
        """Return what is done once this member has contributed, where there are other members."""

    @abstractmethod
    def _judge(self, chunk: ChunkArrived) -> DropChunk | RefuseChunk | None:
        """Return why a chunk of this round has no effect, or None when it is one that was waited for."""

    @abstractmethod
    def _take(self, chunk: ChunkArrived) -> list[RingInstruction]:
        """Return what is done with a chunk that was waited for."""
