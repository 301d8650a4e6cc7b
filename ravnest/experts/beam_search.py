"""The search for the best experts of a batch, of which the hash table knows only who is hosted. Pure.

The score of an expert is the sum of one number for each coordinate, which the gate gives. The search goes through the
dimensions: of the prefixes that the table knows it takes the `width` best, asks what is hosted behind them, and goes
on with the next dimension. When it comes to fewer than `best` experts, it goes back to the best prefixes that it has
left lying (backtracking), until it has enough, nothing is left, or it has gone back `MOST_RETURNS` times.

In: scores, and what is hosted behind the prefixes in `wanted`. Out: the experts of each sample, the best first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from heapq import nlargest

from ravnest.experts.grid import Expert

MOST_RETURNS = 16
"""A sample for which nearly nothing is hosted takes what it has after so many steps back."""

Scores = Sequence[Sequence[float]]
"""[dimension][coordinate]"""


class BeamSearch:
    """One search for all samples of a batch. While `wanted` is not empty, call `arrived`."""

    def __init__(
        self, scores: Sequence[Scores], *, width: int, best: int, without: Sequence[Set[Expert]] | None = None
    ) -> None:
        """
        Arguments:
            scores: of each sample.
            width: how many prefixes of a sample are looked behind at a time.
            best: how many experts each sample is to have.
            without: the experts that each sample cannot use.
        """
        none: Sequence[Set[Expert]] = [frozenset()] * len(scores)
        self._samples = [
            _Sample(one, width, best, left_out) for one, left_out in zip(scores, without or none, strict=True)
        ]
        self._next()

    def arrived(self, behind: Mapping[Expert, Collection[int]]) -> None:
        """What is hosted behind the prefixes in `wanted`; a prefix that is missing has nothing behind it."""
        for sample in self._samples:
            sample.take(behind)
        self._next()

    def take_all(self, sides: Sequence[int]) -> None:
        """Go through to the end where every expert of a grid of these sides is hosted."""
        while self.wanted:
            self.arrived({prefix: range(sides[len(prefix)]) for prefix in self.wanted})

    def found(self) -> list[list[Expert]]:
        """The experts of each sample, the best first."""
        return [[expert for _, expert in sample.experts()] for sample in self._samples]

    def _next(self) -> None:
        wanted: set[Expert] = set()
        for sample in self._samples:
            wanted.update(sample.ask())
        self.wanted = frozenset(wanted)
        """Prefixes of which the next `arrived` must tell."""


class _Sample:
    def __init__(self, scores: Scores, width: int, best: int, without: Set[Expert]) -> None:
        self._scores = scores
        self._width, self._best, self._without = width, best, without
        self._open: list[list[tuple[float, Expert]]] = [[(0.0, ())], *([] for _ in scores[1:])]
        """By length: prefixes that are hosted, and were not looked behind, with their scores."""
        self._asked: list[tuple[float, Expert]] = []
        self._found: list[tuple[float, Expert]] = []
        self._deepest = 0
        self._returns = 0

    def ask(self) -> Iterable[Expert]:
        """The prefixes to look behind; none when the search is over."""
        if len(self._found) >= self._best or self._returns >= MOST_RETURNS:
            return ()
        length = next((one for one in reversed(range(len(self._open))) if self._open[one]), None)
        if length is None:
            return ()
        if length < self._deepest:
            self._returns += 1
        self._deepest = length + 1
        ordered = sorted(self._open[length], reverse=True)
        self._asked, self._open[length] = ordered[: self._width], ordered[self._width :]
        return (prefix for _, prefix in self._asked)

    def take(self, behind: Mapping[Expert, Collection[int]]) -> None:
        for score, prefix in self._asked:
            more = self._scores[len(prefix)]
            reached = ((score + more[one], (*prefix, one)) for one in behind.get(prefix, ()))
            if len(prefix) + 1 == len(self._scores):
                self._found.extend(one for one in reached if one[1] not in self._without)
            else:
                self._open[len(prefix) + 1].extend(reached)
        self._asked = []

    def experts(self) -> list[tuple[float, Expert]]:
        return nlargest(self._best, self._found)
