"""Chooses the cuts: of all positions where a model may be cut, those that are offered to the planner.

1. Between two operations that use parameters, only the position that sends the fewest bytes is kept. So every unit
   holds a parameter, and none is without work.
2. A cut is dropped when another, less than 2 % of the model's work and parameters away, sends at most two thirds of
   its bytes. In a transformer this leaves the two residual joints of a block, and more the fewer blocks there are.
3. Of cuts with less than 0.2 % of the model's work and parameters between them, the one that sends less is kept.
4. While there are too many units, the cheapest neighbours are merged.

In: positions with the bytes that a cut there sends, and running totals of work. Out: the boundaries of the units. This
is pure arithmetic on positions.
"""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise

MOST_UNITS = 200
_NEAR = 0.02
_MUCH_LESS = 2 / 3
_SAME = 0.002


@dataclass(frozen=True)
class Cut:
    """A position where the model may be cut."""

    position: int
    sent_bytes: int
    """Bytes sent forward and back, for the whole sample."""


@dataclass(frozen=True)
class RunningTotals:
    """Running totals over the positions of a graph: entry p is the total before position p."""

    flops: tuple[int, ...]
    parameter_bytes: tuple[int, ...]
    parameter_uses: tuple[int, ...]

    def share(self, start: int, end: int) -> float:
        """The fraction of the model's work, or of its parameter bytes if that is more, that lies in [start, end)."""
        shares = [
            (totals[end] - totals[start]) / totals[-1] if totals[-1] else 0.0
            for totals in (self.flops, self.parameter_bytes)
        ]
        return max(shares)


def choose(cuts: list[Cut], work: RunningTotals, most_units: int = MOST_UNITS) -> tuple[int, ...]:
    """The positions of the units' boundaries, both ends of the model included; at most `most_units` units."""
    kept = _without_dominated(_cheapest_between_parameters(cuts, work), work)
    kept = _without_twins(kept, work)
    positions = [0, *(cut.position for cut in kept), len(work.flops) - 1]
    return _merged(positions, work, most_units)


def _cheapest_between_parameters(cuts: list[Cut], work: RunningTotals) -> list[Cut]:
    best: dict[int, Cut] = {}
    for cut in sorted(cuts, key=lambda cut: cut.position):
        used = work.parameter_uses[cut.position]
        if 0 < used < work.parameter_uses[-1] and (used not in best or cut.sent_bytes <= best[used].sent_bytes):
            best[used] = cut
    return [best[used] for used in sorted(best)]


def _without_dominated(cuts: list[Cut], work: RunningTotals) -> list[Cut]:
    positions = [cut.position for cut in cuts]
    kept = []
    for cut in cuts:
        here = bisect_left(positions, cut.position)
        around = []
        for step in (-1, 1):
            other = here + step
            while 0 <= other < len(cuts):
                near = sorted((cut.position, positions[other]))
                if work.share(near[0], near[1]) >= _NEAR:
                    break
                around.append(cuts[other].sent_bytes)
                other += step
        if not any(sent <= cut.sent_bytes * _MUCH_LESS for sent in around):
            kept.append(cut)
    return kept


def _without_twins(cuts: list[Cut], work: RunningTotals) -> list[Cut]:
    kept: list[Cut] = []
    for cut in cuts:
        if kept and work.share(kept[-1].position, cut.position) < _SAME:
            if cut.sent_bytes < kept[-1].sent_bytes:
                kept[-1] = cut
        else:
            kept.append(cut)
    return kept


def _merged(positions: list[int], work: RunningTotals, most_units: int) -> tuple[int, ...]:
    positions = list(positions)
    while len(positions) - 1 > most_units:
        spans = [work.share(start, end) for start, end in pairwise(positions)]
        cheapest = min(range(len(spans) - 1), key=lambda i: spans[i] + spans[i + 1])
        del positions[cheapest + 1]
    return tuple(positions)
