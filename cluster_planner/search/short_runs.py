"""Hill climbing in short runs, each with other draws, and with the kinds of changes drawn as at first.

One long run from a plan draws those kinds most often that gained at its beginning, and ends where others still gain.
In: a plan, and what climbs from it. Out: after each run, the best plan so far.
"""

import itertools
from collections.abc import Iterator, Sequence

from cluster_planner.plan import Cluster
from cluster_planner.search.whole_plans import Clusters, WholePlans

TRIES = 50
"""The number of changes that a run tries."""


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
