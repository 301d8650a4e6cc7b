"""How fast something goes on that is counted up in steps, for the progress that a user sees. Pure.

In: readings of a count. Out: a rate that neither rises nor falls with the time since the last step.
"""

from collections import deque

RATE_OVER_S = 15.0
"""A cluster's rate is told over at least so many seconds, and over two updates, where it has been training so long."""
_LEAST_POINTS = 3


class RecentRate:
    """How fast something is counted up that rises in steps, over the last RATE_OVER_S seconds or a little more."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, int]] = deque()
        """(moment in seconds, count) of the first reading and of each that was higher than the one before."""

    def at(self, now_s: float, count: int) -> float:
        """Take a reading, and return the rate per second; 0 before the second reading, which is another count.

        The rate is that between two steps, so that it does not fall and rise with the time since the last one. Where
        the next step is late, by the mean time between those before, the rate falls until it comes.
        """
        steps = self._steps
        if not steps or count > steps[-1][1]:
            steps.append((now_s, count))
        while len(steps) > _LEAST_POINTS and steps[1][0] <= now_s - RATE_OVER_S:
            steps.popleft()
        (first_s, first), (last_s, last) = steps[0], steps[-1]
        between_s = last_s - first_s
        if between_s <= 0:
            return 0.0
        return (last - first) / max(between_s, now_s - first_s - between_s / (len(steps) - 1))
