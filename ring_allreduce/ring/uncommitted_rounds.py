"""What one member keeps of the rounds that are not committed: contributions, whole averages, and averages handed on.

Contributions and whole averages are kept until the commit, since a round may have to start again, and since a member
that holds an average hands it on, byte for byte and in chunks, to one that misses it. This module says which rounds
are finished, which are too far ahead, and which handed-on chunks are taken from whom. It sends nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ring_allreduce.ring.events import weight_fits
from ring_allreduce.ring.executor import RingContribution, RingSpec
from ring_allreduce.ring.messages import HandedOn
from ring_allreduce.ring.robust_mean import ContributionFigures
from ring_allreduce.rounds.events import RoundKey
from ring_timing import Layout


@dataclass(frozen=True)
class RingResult:
    """The average of one ring in one round. Read `average`, never write to it: parts may still be leaving.

    Its memory is used again after RingReducer.commit().
    """

    ring: str
    round: int
    average: Tensor
    total_weight: float
    counters: tuple[int, ...]
    contributions: Mapping[str, ContributionFigures] = field(default_factory=dict)
    """What each member's contribution was like, where a robust rule has seen them here."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """The digest of each member's contribution, where a robust rule has seen them here."""
    received_bytes: int = 0
    """What came for it, as it travelled, without headers; of a round that was begun again, since then."""


class UncommittedRounds:
    """Contributions and whole averages of the rounds after the last commit, over all rings of one member."""

    def __init__(self, rings: Iterable[str], max_rounds: int, committed: int) -> None:
        """`max_rounds` is that of RingReducer; `committed` is the round before the first one."""
        self.rings = frozenset(rings)
        self.committed = committed
        self.contributions: dict[RoundKey, RingContribution] = {}
        self._max_rounds = max_rounds
        self._whole: dict[RoundKey, tuple[RingResult, int]] = {}
        self._carry: dict[str, Tensor] = {}

    def take_carry(self, ring: str) -> Tensor | None:
        """Return what compression took from the committed rounds of a ring; it is given once. None: nothing is left."""
        return self._carry.pop(ring, None)

    def add(self, result: RingResult, epoch: int) -> None:
        """Keep `result`, which became whole in `epoch`."""
        self._whole[result.ring, result.round] = result, epoch

    def whole(self, ring: str, round: int) -> RingResult | None:  # noqa: A002 - our word
        """Return the average, when it is whole here and not committed."""
        found = self._whole.get((ring, round))
        return found[0] if found else None

    def forget(self, ring: str, round: int) -> RingResult | None:  # noqa: A002 - our word
        """Forget the average of a round that starts again; return it, or None if there was none."""
        found = self._whole.pop((ring, round), None)
        return found[0] if found else None

    def holding(self) -> list[RoundKey]:
        """Return the keys of the whole averages, in order."""
        return sorted(self._whole)

    def closed(self, ring: str, round: int, epoch: int) -> bool:  # noqa: A002 - our word
        """Say whether nothing can come for a round in `epoch` any more.

        A round that was whole in an older epoch is not closed: another member may already have been told that it starts
        again.
        """
        found = self._whole.get((ring, round))
        return round <= self.committed or (found is not None and found[1] == epoch)

    def finished_to(self, ring: str) -> int:
        """Return the round up to which all of them are whole or committed."""
        last = self.committed
        while (ring, last + 1) in self._whole:
            last += 1
        return last

    def too_far(self, ring: str, round: int) -> str | None:  # noqa: A002 - our word
        """Return why a round cannot have begun anywhere, or None when it may.

        A round is committed only when all have finished it, and nobody contributes max_rounds beyond a commit.
        """
        finished = self.finished_to(ring)
        if round <= finished + self._max_rounds:
            return None
        return f"more than {self._max_rounds} rounds ahead of round {finished}"

    def why_not_counted(self, key: RoundKey, counters: tuple[int, ...]) -> str | None:
        """Return why `counters` are not those of a round's average, or None when they can be."""
        own = self.contributions.get(key)
        if own is None or len(own.counters) == len(counters):
            return None
        return f"{len(counters)} counters, not {len(own.counters)}"

    def commit(self, round: int) -> list[RingResult]:  # noqa: A002 - our word
        """Forget everything of the rounds up to `round`, and return the averages that were kept of them."""
        self.committed = max(self.committed, round)
        gone = [self._whole.pop(key)[0] for key in self.holding() if key[1] <= round]
        for key in sorted(key for key in self.contributions if key[1] <= round):
            residual = self.contributions.pop(key).residual
            if residual is not None:
                earlier = self._carry.get(key[0])
                self._carry[key[0]] = residual if earlier is None else residual.add_(earlier)
        return gone


def pieces(result: RingResult, chunk_elements: int) -> Iterator[tuple[HandedOn, Tensor]]:
    """Return the messages that carry `result`, each with its span of the average, which is not copied."""
    for start, stop in Layout(result.average.numel(), 1, chunk_elements).chunks(0):
        yield (
            HandedOn(
                ring=result.ring,
                round=result.round,
                start=start,
                stop=stop,
                total_weight=result.total_weight,
                counters=result.counters,
            ),
            result.average[start:stop],
        )


class Handover:
    """One average that arrives from one holder."""

    def __init__(self, spec: RingSpec, round: int) -> None:  # noqa: A002 - our word
        self._spec = spec
        self._round = round
        self._layout = Layout(spec.elements, 1, spec.chunk_elements)
        self._average = torch.empty(spec.elements, dtype=spec.dtype)
        self._here: set[int] = set()
        self._total: tuple[float, tuple[int, ...]] | None = None

    @property
    def received(self) -> int:
        """Return the number of chunks that are here."""
        return len(self._here)

    @property
    def expected(self) -> int:
        """Return the number of chunks in all."""
        return self._layout.chunk_count()

    def why_not(self, piece: HandedOn) -> str | None:
        """Return why a piece contradicts the ring or the pieces before it, or None when it fits."""
        if not self._layout.has_chunk(0, piece.start, piece.stop):
            return f"[{piece.start}, {piece.stop}) is no chunk of {self._layout}"
        if not weight_fits(piece.total_weight, len(self._spec.members)):
            return f"total weight {piece.total_weight}"
        if self._total not in (None, (piece.total_weight, piece.counters)):
            return f"a total of {piece.total_weight} {piece.counters}, after {self._total}"
        return None

    def take(self, piece: HandedOn, span: Tensor) -> bool:
        """Put in a piece that fits; False when it was there before."""
        if piece.start in self._here:
            return False
        self._here.add(piece.start)
        self._total = piece.total_weight, piece.counters
        self._average[piece.start : piece.stop] = span
        return True

    def result(self) -> RingResult | None:
        """Return the average, once it is whole."""
        if self._total is None or len(self._here) < self._layout.chunk_count():
            return None
        total_weight, counters = self._total
        came = self._average.nbytes
        return RingResult(self._spec.name, self._round, self._average, total_weight, counters, received_bytes=came)


class Handovers:
    """The averages that other members hand on to this one."""

    def __init__(self) -> None:
        self._arriving: dict[RoundKey, dict[str, Handover]] = {}
        self._holders: dict[RoundKey, str] = {}

    def expect(self, spec: RingSpec, round: int, holder: str) -> RingResult | None:  # noqa: A002 - our word
        """Take this average from `holder` alone; the whole of it, when it came before this was known."""
        key = spec.name, round
        early = self._arriving.get(key, {}).get(holder)
        self._arriving[key] = {holder: early or Handover(spec, round)}
        self._holders[key] = holder
        return self._arriving[key][holder].result()

    def why_not(self, spec: RingSpec, sender: str, piece: HandedOn) -> str | None:
        """Return why a piece is refused, or None when it can be taken."""
        key = spec.name, piece.round
        if sender not in spec.members or self._holders.get(key, sender) != sender:
            return f"this member takes the average from {self._holders.get(key, 'a member')!r}"
        if key not in self._holders and any(other != sender for other in self._arriving.get(key, ())):
            return "another has handed on that average before it was asked for"  # one vector's memory, no more
        return self._handover(spec, sender, piece.round).why_not(piece)

    def take(self, spec: RingSpec, sender: str, piece: HandedOn, span: Tensor) -> tuple[bool, RingResult | None]:
        """Put in a piece that fits: whether it was new, and the average once it is whole and its holder known."""
        key = spec.name, piece.round
        handover = self._handover(spec, sender, piece.round)
        # It may come before the holder is known here: the two took different ways.
        self._arriving.setdefault(key, {})[sender] = handover
        new = handover.take(piece, span)
        return new, handover.result() if new and key in self._holders else None

    def awaited(self) -> list[tuple[RoundKey, str, Handover]]:
        """Return (key, holder, what is here of it) of every average that is awaited."""
        return [(key, holder, self._arriving[key][holder]) for key, holder in sorted(self._holders.items())]

    def forget(self, key: RoundKey) -> None:
        """Drop what is here of an average that is whole, starts again, or is given up."""
        self._arriving.pop(key, None)
        self._holders.pop(key, None)

    def keys(self) -> set[RoundKey]:
        """Return the keys of all averages of which anything is here or awaited."""
        return {*self._arriving, *self._holders}

    def _handover(self, spec: RingSpec, sender: str, round: int) -> Handover:  # noqa: A002 - our word
        return self._arriving.get((spec.name, round), {}).get(sender) or Handover(spec, round)
