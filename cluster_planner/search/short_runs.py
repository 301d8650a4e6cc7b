"""Hill climbing in short runs, each with other draws, and with the kinds of changes drawn as at first.

One long run from a plan draws those kinds most often that gained at its beginning, and ends where others still gain.
In: a plan, and what climbs from it. Out: after each run, the best plan so far. In large fleets a run takes many
seconds, so a climber that is told to end does so before its next change.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence

from cluster_planner.plan import Cluster
from cluster_planner.search.whole_plans import ROUGHLY, Clusters, WholePlans

TRIES = 50
"""The number of changes that a run tries."""


class Ended(Exception):
    """A climber was told to end. `taken`: the last plan that it took, which is the best; None where it took none."""

    def __init__(self, taken: Clusters | None) -> None:
        super().__init__("a climber was told to end")
        self.taken = taken


class EndingPlans(WholePlans):
    """Hill climbing that raises `Ended` where it `is_over`, which is asked before each change is judged."""

    is_over: Callable[[], bool] = staticmethod(lambda: False)
    _taken: Clusters | None = None

    def better(
        self, changed: Clusters, now: tuple[float, float], *, slack: float = ROUGHLY
    ) -> tuple[float, float] | None:
        """Return what that of WholePlans returns."""
        if self.is_over():
            raise Ended(self._taken)
        if (found := super().better(changed, now, slack=slack)) is not None:
            self._taken = changed
        return found


def short_runs(
    climber: WholePlans, clusters: Sequence[Cluster], worth: float, seed: int
) -> Iterator[tuple[Clusters, float, int]]:
    """Yield (clusters, worth, idle) after each run, without end; idle: how many changes since the last gain.

    `worth`: that of the clusters that are given.
    """
    now, idle = tuple(clusters), 0
    for number in itertools.count():
        better, value = climber.improved(now, TRIES, seed + number)
        if value > worth * (1 + 1e-9):
            now, worth, idle = better, value, 0
        else:
            idle += TRIES
        yield now, worth, idle
