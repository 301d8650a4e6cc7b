"""When silence means that someone is gone: deadlines derived from what was measured (design §9).

In: the times at which signs of life came. Out: how long a silence may last, and whether it has lasted longer. Pure:
times are passed in. A deadline is a multiple of the usual gap between signs of life, median plus spread, and never
below a floor, since a busy machine schedules late. docs/deadlines.md has the table of all deadlines.
"""

import statistics
from collections import deque
from dataclasses import dataclass

from ring_allreduce.errors import InvalidInput

SILENCE_FLOOR_S = 20.0
"""No peer of a run is given up sooner than this, however regular it was."""

_GAPS_KEPT = 64


@dataclass(frozen=True)
class Patience:
    """The time for which a group waits for signs of life, and for chunks, before it goes on without someone."""

    alive_every_s: float = 1.0
    """A member says this often that it lives, and how far its rings are."""

    silence_floor_s: float = 10.0
    """No member is given up for silence sooner than this."""

    stall_floor_s: float = 15.0
    """No connection is held dead sooner than this, though it carries nothing of what was sent."""

    def __post_init__(self) -> None:
        if not 0 < self.alive_every_s < min(self.silence_floor_s, self.stall_floor_s) < float("inf"):
            raise InvalidInput(f"patience needs 0 < alive_every_s < silence_floor_s, stall_floor_s; got {self}")


class AwakeTime:
    """The time of a clock less the gaps in which nobody read it: its process was frozen, or its machine suspended.

    Such a gap is nobody's silence. What others have said meanwhile waits to be heard, or they stood still themselves.
    """

    def __init__(self, longest_s: float, usual_s: float) -> None:
        """
        Arguments:
            longest_s: two readings that lie further apart than this have a gap between them.
            usual_s: how much of such a gap counts all the same. It is more than 0, so that deadlines pass even where
                every turn of a loop is a gap.
        """
        if not 0 < usual_s <= longest_s:
            raise InvalidInput(f"awake time needs 0 < usual_s <= longest_s; got {usual_s} and {longest_s}")
        self._longest_s = longest_s
        self._usual_s = usual_s
        self._read_s: float | None = None
        self.away_s = 0.0
        """The seconds that were left out so far."""

    def at(self, now_s: float) -> float:
        """Read the clock: return `now_s` less all gaps so far."""
        if self._read_s is not None and now_s - self._read_s > self._longest_s:
            self.away_s += now_s - self._read_s - self._usual_s
        self._read_s = now_s
        return now_s - self.away_s


class SilenceDeadline:
    """Expires when nothing was heard for `factor` × (median + 2·spread) of the usual gap, at least `floor_s`."""

    def __init__(self, now_s: float, *, floor_s: float = SILENCE_FLOOR_S, factor: float = 8.0) -> None:
        self._floor_s = floor_s
        self._factor = factor
        self._last_s = now_s
        self._gaps_s: deque[float] = deque(maxlen=_GAPS_KEPT)

    def heard(self, now_s: float) -> None:
        """Take note of a sign of life."""
        self._gaps_s.append(max(0.0, now_s - self._last_s))
        self._last_s = now_s

    def rest(self, now_s: float) -> None:
        """Take note that nothing is waited for, so that the time up to `now_s` is neither silence nor a gap."""
        self._last_s = now_s

    def silent_s(self, now_s: float) -> float:
        return now_s - self._last_s

    def limit_s(self) -> float:
        """Return how long a silence may last."""
        if len(self._gaps_s) < 2:
            return self._floor_s
        median = statistics.median(self._gaps_s)
        spread = statistics.median(abs(gap - median) for gap in self._gaps_s)
        return max(self._floor_s, self._factor * (median + 2 * spread))

    def expired(self, now_s: float) -> bool:
        silent_s = self.silent_s(now_s)
        return silent_s > self._floor_s and silent_s > self.limit_s()  # asked each turn: spare it two medians
