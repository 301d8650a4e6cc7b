"""How far one contribution may lie from the last mean: what bounds a lie that is a finite number. Pure.

In: for each contribution whose it is, how many samples stand behind it, and the norm of its mean gradient less the last
step's mean (its deviation). Out: the deviation that it may have. The sum counts what goes beyond it scaled down to it
(centred clipping: Karimireddy, He and Jaggi, "Learning from history for Byzantine robust optimization", ICML 2021).

An honest deviation has a part that all share, since the mean moves between two steps, and noise that falls with the
square root of the samples:    d² ≈ drift² + σ² / n.    Medians over people stand for both:

    allowed(n) = MOST_DEVIATION · max(median d, median(d √n) / √n)

Each person has one value, the last, so no median moves beyond honest values while fewer than half of them lie. Then a
lie of n of N samples moves the mean by at most n / N · allowed(n) from where it was. A whole contribution is neither
refused nor put out for it: when gradients grow, they grow for everyone, and the medians follow within a step.
"""

import math
from collections import OrderedDict
from statistics import median

LEAST_PEOPLE = 3
"""Of two people nobody can say which one lies: with fewer nothing is bounded."""

MOST_PEOPLE = 128
"""The last so many people's values are kept."""

MOST_DEVIATION = 4.0


class Deviations:
    """The last deviation of each person."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._last)

    def saw(self, person: str, deviation: float, samples: int) -> None:
        """A contribution of a person had this deviation, in which infinite is a number like others."""
        self._last[person] = deviation, samples
        self._last.move_to_end(person)
        while len(self._last) > MOST_PEOPLE:
            self._last.popitem(last=False)

    def allowed(self, samples: int) -> float:
        """The deviation that a contribution of so many samples may have; infinite while too few people are known."""
        if len(self._last) < LEAST_PEOPLE:
            return math.inf
        shared = median(deviation for deviation, _ in self._last.values())
        noise = median(deviation * math.sqrt(number) for deviation, number in self._last.values())
        return MOST_DEVIATION * max(shared, noise / math.sqrt(samples))
