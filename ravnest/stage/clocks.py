"""How far a stage's clock is from the driver's, from the signs of life that they exchange. Pure: times are passed in.

The driver's Alive carries its time; the stage's next Alive returns it, with when it was heard and when it was answered.
The way there and the way back are taken to be equally long, so the error is at most half of what the two took together;
the quickest exchange counts. Clocks drift apart by up to some 50 µs a second, which this does not follow.
"""

import math


class ClockOffset:
    """One stage's clock as the driver sees it."""

    def __init__(self) -> None:
        self._estimate_s = 0.0
        self.error_s = math.inf
        """How wrong `offset_s` can be, twice that where it is 0; infinite before the first exchange."""

    def exchanged(self, sent_s: float, heard_s: float, answered_s: float, back_s: float) -> None:
        """The driver's `sent_s` and `back_s` around the stage's `heard_s` and `answered_s`, each by its own clock."""
        error_s = max(0.0, (back_s - sent_s) - (answered_s - heard_s)) / 2
        if error_s < self.error_s:
            self.error_s = error_s
            self._estimate_s = ((heard_s - sent_s) + (answered_s - back_s)) / 2

    @property
    def offset_s(self) -> float:
        """The stage's clock less the driver's. One that cannot be told from none is none: on one machine both read the
        same clock."""
        return 0.0 if abs(self._estimate_s) <= self.error_s else self._estimate_s
