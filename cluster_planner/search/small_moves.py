"""A descent over the small changes of a whole plan, one after another.

Hill climbing (whole_plans.py) draws its changes, and of the many small ones of a large plan it tries few. Where rounds
starve, a plan has cuts and nodes that hold all clusters up, and small moves of several of them, one after another, gain
most. So they are tried in order, until a pass over all gains nothing:

    cuts        each by one unit this way and that, alone or in all clusters that have it; one that gains goes on
    same cuts   each cluster takes the cuts of each other one with as many stages
    exchanges   each node changes places with that of each other cluster which runs the same units
    orders      of a plan of up to FEW_STAGES stages: each cluster takes each other order of its nodes, with the best
                cuts for it and with the same cuts

In: clusters. Out: clusters that are worth more. Nothing is drawn.
"""

import itertools
from collections.abc import Iterator

from cluster_planner.predict.plan_worths import PlanWorths
from cluster_planner.search.whole_plans import Clusters, WholePlans

LEAST = 1e-4
"""Another pass follows one that has gained more than this part of the worth."""

FEW_STAGES, MOST_ORDERED = 7, 5
"""Of plans of so many stages clusters of up to MOST_ORDERED take each order."""


def with_small_moves(plans: WholePlans, worths: PlanWorths, clusters: Clusters, tries: int) -> Clusters:
    """Return the plan after trying so many moves at most, each judged roughly first and exactly where that promises a
    gain.
    """
    descent, before = _Descent(plans, worths, clusters, tries), 0.0
    while descent.worth > before * (1 + LEAST):
        before = descent.worth
        for at in _places(descent.now):
            for together, by in ((False, 1), (False, -1), (True, 1), (True, -1)):
                if together and not _is_shared(descent.now, at):
                    break
                while descent.takes(plans.with_cut_moved(descent.now, at, by, together=together)):
                    pass
        pairs = [(i, j) for i in range(len(clusters)) for j in range(len(clusters)) if i != j]
        for i, j in pairs:
            if len(descent.now[i].stages) == len(descent.now[j].stages):
                descent.takes(plans.with_cuts_of(descent.now, i, [j]))
        for (i, s), j in ((at, j) for at in _places(descent.now) for j in range(at[0] + 1, len(clusters))):
            descent.takes(plans.with_exchange(descent.now, (i, s), (j, plans.aligned(descent.now, (i, s), j))))
        if sum(len(cluster.stages) for cluster in descent.now) <= FEW_STAGES:
            for i in range(len(clusters)):
                for changed in _reordered(plans, descent.now, i):
                    descent.takes(changed)
    return descent.now


def _reordered(plans: WholePlans, now: Clusters, i: int) -> Iterator[Clusters | None]:
    """Yield the plan with each order of the nodes of cluster i, cut anew and with the cuts that it has."""
    names, cuts = [stage.node for stage in now[i].stages], [stage.units for stage in now[i].stages]
    for order in itertools.permutations(names) if len(names) <= MOST_ORDERED else ():
        yield plans.replaced(now, {i: plans.made.cut_anew(order)})
        yield plans.replaced(now, {i: plans.made.of_spans(order, cuts)})


class _Descent:
    """`now`: the best plan so far, and what it is worth. It takes changes as long as there are tries left."""

    def __init__(self, plans: WholePlans, worths: PlanWorths, clusters: Clusters, tries: int) -> None:
        self._plans, self._tries = plans, tries
        self.now, self.worth, self._rough = clusters, worths.of(clusters), worths.of(clusters, roughly=True)

    def takes(self, changed: Clusters | None) -> bool:
        """Say whether a change makes the plan worth more; then it is the plan from now on."""
        now = self.worth, self._rough
        if changed is None or self._tries <= 0 or self._plans.was_less(changed, now):
            return False
        self._tries -= 1
        if (better := self._plans.better(changed, now)) is None:
            return False
        self.now, (self.worth, self._rough) = changed, better
        return True


def _places(clusters: Clusters) -> Iterator[tuple[int, int]]:
    """Yield (cluster, stage) of each."""
    for i, cluster in enumerate(clusters):
        for s in range(len(cluster.stages)):
            yield i, s


def _is_shared(clusters: Clusters, at: tuple[int, int]) -> bool:
    """Return whether another cluster has the cut after this stage, too."""
    end = clusters[at[0]].stages[at[1]].units[1]
    return any(i != at[0] and any(stage.units[1] == end for stage in one.stages) for i, one in enumerate(clusters))
