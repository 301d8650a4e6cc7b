"""How fast one direction of a link is, from what has passed on it. Pure.

In: how many bytes have passed, and when. Out: bytes per second. Of what passes in a step one volunteer with a slow link
may make up the end, and a wait the beginning; so the shortest time counts in which half of the bytes have passed, and
of the last steps the median.
"""

from collections import deque
from statistics import median

BIN_S = 0.1
LEAST_BINS = 3
"""What passed faster than that many bins says nothing: the averages take no time beside the steps."""

KEPT = 5


class LinkRate:
    """One direction of one machine's link."""

    def __init__(self) -> None:
        self._bins: dict[int, float] = {}
        self._rates: deque[float] = deque(maxlen=KEPT)

    @property
    def bytes_per_s(self) -> float:
        """What was measured; 0: nothing yet."""
        return median(self._rates) if self._rates else 0.0

    def passed(self, n_bytes: float, now_s: float) -> None:
        """So many bytes have passed by now."""
        if n_bytes <= 0:
            return
        at = int(now_s / BIN_S)
        self._bins[at] = self._bins.get(at, 0.0) + n_bytes

    def step_ended(self) -> None:
        """What has passed since the last call was one step's."""
        bins = sorted(self._bins.items())
        self._bins = {}
        half = sum(n_bytes for _, n_bytes in bins) / 2
        best, first, within = 0.0, 0, 0.0
        for last, (at, n_bytes) in enumerate(bins):
            within += n_bytes
            while first < last and within - bins[first][1] >= half:
                within -= bins[first][1]
                first += 1
            span = at - bins[first][0] + 1
            if within >= half and last and span >= LEAST_BINS:
                best = max(best, within / (span * BIN_S))
        if best:
            self._rates.append(best)
