"""A descent along the cuts of a whole plan: each cut, one after another, by one unit this way and that.

Hill climbing (whole_plans.py) draws its changes, and of the many cuts of a large plan it tries few in both directions.
Where rounds starve, a plan has cuts that hold all clusters up, and small moves of several of them, one after another,
gain most. So they are tried in order: a cut that gains goes on in its direction, alone or in all clusters that have it,
until a pass over all cuts gains nothing. In: clusters. Out: clusters that are worth more. Nothing is drawn.
"""

from cluster_planner.predict.plan_worths import PlanWorths
from cluster_planner.search.whole_plans import Clusters, WholePlans

LEAST = 1e-4
"""Another pass follows one that has gained more than this part of the worth."""


def with_moved_cuts(plans: WholePlans, worths: PlanWorths, clusters: Clusters, tries: int) -> Clusters:
    """Return the plan after trying so many moves at most, each judged roughly first and exactly where that promises a
    gain.
    """
    now, before = clusters, 0.0
    worth, rough = worths.of(now), worths.of(now, roughly=True)
    while worth > before * (1 + LEAST):
        before = worth
        for at in [(i, s) for i, cluster in enumerate(clusters) for s in range(len(cluster.stages) - 1)]:
            for together, by in ((False, 1), (False, -1), (True, 1), (True, -1)):
                if together and not _is_shared(now, at):
                    break
                while (moved := plans.with_cut_moved(now, at, by, together=together)) is not None:
                    if (tries := tries - 1) < 0:
                        return now
                    if (better := plans.better(moved, (worth, rough))) is None:
                        break
                    now, (worth, rough) = moved, better
    return now


def _is_shared(clusters: Clusters, at: tuple[int, int]) -> bool:
    """Return whether another cluster has the cut after this stage, too."""
    end = clusters[at[0]].stages[at[1]].units[1]
    return any(i != at[0] and any(stage.units[1] == end for stage in one.stages) for i, one in enumerate(clusters))
