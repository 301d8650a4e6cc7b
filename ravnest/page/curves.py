"""Curves of bounded length, for runs of any length. Pure.

In: points, one after another. Out: at most so many points; where there were more, each is the mean of equally many of
those that came, so that a curve becomes smoother and not shorter.
"""


class Curve:
    """One curve. A point is a tuple of numbers."""

    def __init__(self, most: int) -> None:
        """`most`: the most points that are kept, at least 2."""
        self._most = max(2, most)
        self._width = 1
        """How many of the points that came make one that is kept."""
        self._kept: list[tuple[float, ...]] = []
        self._sum: tuple[float, ...] = ()
        self._count = 0
        """How many points came since, fewer than `_width`: `_sum` is their sum."""

    def add(self, *point: float) -> None:
        """Take one more point."""
        self._sum = point if not self._count else tuple(a + b for a, b in zip(self._sum, point, strict=True))
        self._count += 1
        if self._count < self._width:
            return
        self._kept.append(tuple(value / self._count for value in self._sum))
        self._count = 0
        if len(self._kept) > self._most:
            self._halve()

    def _halve(self) -> None:
        if len(self._kept) % 2:  # the odd one is the first half of a new point
            self._sum, self._count = tuple(value * self._width for value in self._kept.pop()), self._width
        pairs = zip(self._kept[::2], self._kept[1::2], strict=True)
        self._kept = [tuple((a + b) / 2 for a, b in zip(one, other, strict=True)) for one, other in pairs]
        self._width *= 2

    @property
    def points(self) -> list[tuple[float, ...]]:
        """The curve, with what came last even where it is less than the others stand for."""
        return [*self._kept, *([tuple(value / self._count for value in self._sum)] if self._count else [])]
