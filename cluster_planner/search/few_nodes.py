"""Better plans of few nodes: hill climbing from their divisions, where averaging makes these worth less.

Divisions are compared by what their pipelines make, each cut for itself. Where averaging takes more time than that
leaves, other cuts and fewer nodes may be worth more. What the pipelines of the best division are worth while nothing is
averaged bounds what can be gained: where the best plan is worth that, nothing is climbed. In: a search's problem. Out:
clusters.

From the best of what this finds climbing goes on until little gains, and small moves follow (small_moves.py): a
hundred changes from each division miss a better order, and plans of fewer nodes, where rounds starve.
"""

from collections.abc import Iterator

from cluster_planner.predict.objective import averaging_factor
from cluster_planner.predict.plan_worths import PlanWorths
from cluster_planner.search.candidates import Assembler
from cluster_planner.search.climbed_starts import PlansOf, Starts, climbed_in_stages
from cluster_planner.search.partitions import Divisions
from cluster_planner.search.search_context import SearchProblem
from cluster_planner.search.small_moves import with_small_moves
from cluster_planner.search.whole_plans import GAIN, Clusters, WholePlans

TRIES = 100
"""The number of changes that are tried from each division."""

HOPEFUL = 0.8
"""Climbing begins at divisions that are worth this part of the best plan while nothing is averaged, or more."""

STAGES = ((16, 1, 50), (5, 1, 150), (2, 1, 400))
"""How many of the best plans go on, how often each, and each time short runs until so many changes have gained nothing.
"""

MOVES = 1600
"""At last so many small moves are tried, at most."""


def climbed_divisions(
    problem: SearchProblem, divisions: Divisions, assembler: Assembler, climber: WholePlans, least: float
) -> Iterator[Clusters]:
    """Yield what climbing finds from each hopeful division, for each number of clusters; nothing where no division can
    be worth more than `least`, the worth of the best plan.
    """
    names, found = problem.fleet.names, list[tuple[float, Clusters]]()
    for groups in divisions.best(0.0, lambda: HOPEFUL * least):
        named = [tuple(names[i] for i in group) for group in groups]
        clusters = assembler.clusters(named)
        if clusters is not None and len(groups) >= problem.fleet.rules.min_clusters:
            alone = sum(one.value for group in named if (one := assembler.pipeline(group, 0.0)) is not None)
            found.append((averaging_factor(len(groups), problem.work) * alone, clusters))
    if max((bound for bound, _ in found), default=0.0) > least * (1 + GAIN):
        for number, (bound, clusters) in enumerate(found):
            if bound >= HOPEFUL * least:
                yield climber.improved(clusters, TRIES, problem.seed + number)[0]


def climbed_further(problem: SearchProblem, worths: PlanWorths, plans_of: PlansOf, starts: Starts) -> Clusters:
    """Return the best clusters that climbing on from the best starts finds, of which there is one at least."""
    best = climbed_in_stages(problem, plans_of, starts, STAGES)
    return with_small_moves(plans_of(problem.able), worths, best, MOVES)
