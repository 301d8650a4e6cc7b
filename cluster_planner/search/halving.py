"""Hill climbing from several plans of which the better half goes on, again and again, until there is one.

How far a start will climb does not show at once, and to climb from each as far as from one takes too long. In: plans,
the best first, each with what climbs from it. Out: the clusters of the one that is left.
"""

from collections.abc import Sequence

from cluster_planner.search.whole_plans import Clusters, WholePlans


def best_by_halves(plans: Sequence[tuple[WholePlans, Clusters]], tries: int, seed: int) -> Clusters:
    """Return what is left, or no clusters where there are no plans. Each time half of `tries` changes are tried from
    all that are left together.
    """
    left = list(plans)
    while len(left) > 1:
        each = tries // (2 * len(left))
        climbed = [(climber, *climber.improved(one, each, seed + i)) for i, (climber, one) in enumerate(left)]
        climbed.sort(key=lambda one: -one[2])
        left = [(climber, clusters) for climber, clusters, _ in climbed[: len(left) // 2]]
    return left[0][1] if left else ()
