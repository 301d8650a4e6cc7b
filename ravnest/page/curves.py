"""Curves of bounded length, for runs of any length. Pure.

In: points, one after another, each with its moment first. Out: at most so many points; where there were more, each is
the mean of those that came in an equal span of time, so that a curve becomes smoother and not shorter. Numbers have
as many digits as a picture shows.

A run that goes back, as one that is resumed from a checkpoint, makes samples anew. What it had made of them before no
longer counts, by the rule of `ravnest.pictures.that_counts`.
"""

from dataclasses import dataclass
from functools import cached_property


@dataclass
class _Span:
    """The points of one span of time."""

    sums: tuple[float, ...]
    count: int
    most: float
    """The largest number of samples among them."""

    def joined(self, other: "_Span") -> "_Span":
        sums = tuple(a + b for a, b in zip(self.sums, other.sums, strict=True))
        return _Span(sums, self.count + other.count, max(self.most, other.most))

    @property
    def mean(self) -> tuple[float, ...]:
        return tuple(value / self.count for value in self.sums)

    @cached_property
    def shown(self) -> tuple[float, ...]:
        """The mean in five digits. All spans but the last stay as they are, so each is written once."""
        return tuple(float(f"{value:.5g}") for value in self.mean)


class Curve:
    """One curve. A point is a tuple of numbers, of which the first is its moment, in seconds."""

    def __init__(self, most: int, *, samples_at: int | None = None) -> None:
        """`most`: the most points that are kept, at least 2. `samples_at`: which number of a point says how many
        samples the run had made; None: no point of this curve is made anew."""
        self._most = max(2, most)
        self._samples_at = samples_at
        self._width_s = 0.0
        """The length of a span; 0: each point is kept by itself."""
        self._spans: list[_Span] = []

    def add(self, *point: float) -> None:
        """Take one more point. Points with more samples no longer count, and with them the others of their span."""
        made = 0.0 if self._samples_at is None else point[self._samples_at]
        while self._spans and self._spans[-1].most > made:
            self._spans.pop()
        self._spans.append(_Span(point, 1, made))
        self._join_last()
        if len(self._spans) > self._most:
            self._width_s = 2.0 * max(self._spans[-1].mean[0] - self._spans[0].mean[0], 1e-9) / self._most
            spans, self._spans = self._spans, []
            for span in spans:
                self._spans.append(span)
                self._join_last()

    def _join_last(self) -> None:
        if self._width_s and len(self._spans) > 1:
            before, last = self._spans[-2:]
            if before.mean[0] // self._width_s >= last.mean[0] // self._width_s:
                self._spans[-2:] = [before.joined(last)]

    @property
    def points(self) -> list[tuple[float, ...]]:
        """The curve."""
        return [span.shown for span in self._spans]
