"""Which of the plans that a search has found hill climbing begins with, and for how long it goes on from each.

A start that is worth little may climb furthest: of few clusters and nodes, it takes the others in as it climbs, while a
plan that is worth more often is one that no change betters. So in fleets of up to MOST_IN_PARTS nodes hill climbing
goes on from many starts, some of each number of clusters, until little gains, and from the best of what comes out for
longer. In larger fleets and in parts of fleets, where each change takes longer or many searches are made,
the better half of few starts goes on, again and again (halving.py); where rounds starve in a larger fleet, many do.

At last small moves are tried in order (small_moves.py). In: plans, each with the nodes that it was made of. Out:
clusters.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from cluster_planner.plan import Cluster
from cluster_planner.predict.plan_worths import PlanWorths
from cluster_planner.search.estimates import Group
from cluster_planner.search.fleet_parts import MOST_IN_PARTS
from cluster_planner.search.halving import best_by_halves
from cluster_planner.search.large_fleets import LARGEST
from cluster_planner.search.search_context import SearchProblem
from cluster_planner.search.short_runs import TRIES as RUN_TRIES
from cluster_planner.search.short_runs import short_runs
from cluster_planner.search.small_moves import with_small_moves
from cluster_planner.search.whole_plans import Clusters, WholePlans

OF_EACH, OF_EACH_OF_MANY = 4, 3
"""So many starts of each number of clusters are kept, each worth something else, and climbed from in larger fleets."""

STAGES = ((16, 4, 60), (5, 1, 200), (2, 1, 400))
"""In fleets of up to MOST_IN_PARTS nodes: how many starts go on, how often each, with other draws, and each time short
runs until so many changes have gained nothing; in fleets of fewer than FULL nodes, which have fewer plans near to one,
as many fewer. What comes of one start differs as much as what comes of two.
"""
FULL, SEEDS, AGAIN_SEEDS = 20, 10_000, 1_000
"""SEEDS separates the draws of one stage from those of the next, AGAIN_SEEDS those of one climb from those of another
from the same start.
"""

CLIMBED = 2
"""The number of starts in larger fleets, and in parts of fleets."""

LOOKED_AT, NEAR, STARVES = 8, 0.7, 1.04
"""In fleets of up to LARGEST nodes rounds starve where one of the best LOOKED_AT starts, if it is worth NEAR of the
best of them, would be worth STARVES times as much if nothing were averaged. It tells little there where a plan begins,
and plans gain for longer.
"""
STARTS_STARVING, STARTS_TIMES_NODES, SHARES_STARVING = 8, 512, (0.25, 0.5, 0.5)
"""So many starts go on there, at most STARTS_TIMES_NODES divided by the nodes, then half of them, and then a quarter,
each time each for such a part of the tries.
"""

TRIES, TRIES_PER_NODE, TRIES_TIMES_NODES = 800, 12, 26_000
"""Where starts are halved, so many changes are tried with the last one, and half as many with all before together each
time: TRIES in a part of up to MOST_IN_PARTS nodes, else TRIES_PER_NODE for each node, but at most TRIES_TIMES_NODES
divided by the nodes.
"""
TRIES_IN_BLOCKS = 60
"""The same of fleets of more than LARGEST nodes, where each takes longest."""

TIMES_FURTHER, TIMES_FURTHER_STARVING, IDLE_STARVING = 4, 64, 100
"""In fleets of up to LARGEST nodes short runs follow, so many times the tries at most. They end before where as many
changes in turn as were tried before have gained nothing; where rounds starve, where IDLE_STARVING for each node have.
"""

MOVES_TIMES_TRIES = 2
"""At last small moves are tried in order, at most so many times as many as the changes above; in fleets of more than
LARGEST nodes as many.
"""

PlansOf: TypeAlias = Callable[[Group], WholePlans]
"""What climbs with these nodes only."""


class Start(NamedTuple):
    """A plan from which to climb. `nodes`: those that it was made of, which may be a part of all."""

    worth: float
    clusters: Clusters
    nodes: Group


class Starts:
    """The best plans that a search has found, each worth something else."""

    def __init__(self) -> None:
        self._of: dict[int, dict[float, Start]] = {}

    def remember(self, start: Start) -> None:
        """Keep a plan if it is one of the best of its number of clusters."""
        alike = self._of.setdefault(len(start.clusters), {})
        alike.setdefault(about(start.worth), start)
        if len(alike) > OF_EACH:
            del alike[min(alike)]

    def best(self, most: int, of_each: int = OF_EACH) -> list[Start]:
        """Return so many at most, and so many of each number of clusters, the best first."""
        found = list[Start]()
        for alike in self._of.values():
            found += sorted(alike.values(), key=lambda start: -start.worth)[:of_each]
        return sorted(found, key=lambda start: -start.worth)[:most]


def climbed(
    problem: SearchProblem,
    worths: PlanWorths,
    plans_of: PlansOf,
    starts: Starts,
    *,
    is_part: bool,
) -> Clusters:
    """Return the best clusters that hill climbing finds; none where there is no start. `is_part`: the problem is one
    of a part of a fleet.
    """
    count, climber = len(problem.able), plans_of(problem.able)
    if count <= MOST_IN_PARTS and not is_part:
        tries, fewer = TRIES, min(1.0, count / FULL)
        best = climbed_in_stages(
            problem, plans_of, starts, [(some, times, idle * fewer) for some, times, idle in STAGES]
        )
    else:
        many = TRIES_IN_BLOCKS if count > LARGEST else min(TRIES_PER_NODE * count, TRIES_TIMES_NODES // count)
        tries = (TRIES if count <= MOST_IN_PARTS else many) // (4 if is_part else 1)
        is_large = MOST_IN_PARTS < count <= LARGEST and not is_part
        if is_large and _starve(worths, starts.best(LOOKED_AT, OF_EACH_OF_MANY)):
            number = min(STARTS_STARVING, STARTS_TIMES_NODES // count)
            left = _by_stages(problem, climber, starts, number, tries)
            best = _further(problem, climber, left, IDLE_STARVING * count, TIMES_FURTHER_STARVING * tries)
        else:
            plans = [(plans_of(start.nodes), start.clusters) for start in starts.best(CLIMBED, OF_EACH_OF_MANY)]
            best = best_by_halves(plans, tries, problem.seed)
            if best:
                best, worth = climber.improved(best, tries, problem.seed + CLIMBED)
                if is_large:
                    best = _further(problem, climber, Start(worth, best, problem.able), tries, TIMES_FURTHER * tries)
    moves = tries * (MOVES_TIMES_TRIES if count <= LARGEST else 1)
    return with_small_moves(climber, worths, best, moves) if best else ()


def climbed_in_stages(
    problem: SearchProblem, plans_of: PlansOf, starts: Starts, stages: Sequence[tuple[int, int, float]]
) -> Clusters:
    """Return the best clusters that hill climbing finds from the best starts; none where there is no start.

    `stages`: how many go on, the best first and each worth something else, how often each, and each time short runs
    until so many changes have gained nothing. From the second stage on these first try the nodes only that one of those
    plans runs.
    """
    left = starts.best(stages[0][0])
    for stage, (some, times, idle_most) in enumerate(stages):
        left, seed = left[:some], problem.seed + stage * SEEDS
        if stage > 0:
            nodes = run_by(problem, [cluster for start in left for cluster in start.clusters])
            left = [start._replace(nodes=nodes) for start in left]
        seeds = [seed + again * AGAIN_SEEDS for again in range(times)]
        found = [_until_idle(problem, plans_of, start, idle_most, one) for start in left for one in seeds]
        found.sort(key=lambda start: start.worth)
        left = list({about(start.worth): start for start in found}.values())[::-1]
    return left[0].clusters if left else ()


def run_by(problem: SearchProblem, clusters: Sequence[Cluster]) -> Group:
    """Return the nodes that these clusters run."""
    number_of = problem.fleet.arrays.number_of
    return tuple(sorted({number_of[stage.node] for cluster in clusters for stage in cluster.stages}))


def _until_idle(problem: SearchProblem, plans_of: PlansOf, start: Start, idle_most: float, seed: int) -> Start:
    """Return what climbing finds with the nodes of a start, and then with all, until so many changes gain nothing."""
    worth, clusters, _ = start
    for nodes in dict.fromkeys((start.nodes, problem.able)):
        runs = short_runs(plans_of(nodes), clusters, worth, seed)
        clusters, worth = next((now, best) for now, best, idle in runs if idle >= idle_most)
    return Start(worth, clusters, problem.able)


def _starve(worths: PlanWorths, starts: Sequence[Start]) -> bool:
    """Say whether one of these, the best first, that is worth NEAR of the first would be worth STARVES times as much
    if nothing were averaged.
    """
    near = [start for start in starts if start.worth >= NEAR * starts[0].worth]
    return any(worths.of(start.clusters, averaged=False) > start.worth * STARVES for start in near)


def _by_stages(problem: SearchProblem, climber: WholePlans, starts: Starts, count: int, tries: int) -> Start:
    """Return the best that climbing finds from many starts, of which fewer go on each time."""
    left = starts.best(count, OF_EACH_OF_MANY)
    for stage, share in enumerate(SHARES_STARVING):
        found = []
        for number, start in enumerate(left[: max(1, count >> stage)]):
            seed = problem.seed + stage * SEEDS + number
            clusters, worth = climber.improved(start.clusters, round(share * tries), seed)
            found.append(Start(worth, clusters, problem.able))
        left = sorted(found, key=lambda start: -start.worth)
    return left[0]


def _further(problem: SearchProblem, climber: WholePlans, start: Start, idle_most: int, tries: int) -> Clusters:
    """Return what short runs find until `idle_most` changes in turn have gained nothing, or `tries` have been tried."""
    runs = enumerate(short_runs(climber, start.clusters, start.worth, problem.seed + CLIMBED), 1)
    return next(now for run, (now, _, idle) in runs if idle >= idle_most or run * RUN_TRIES >= tries)


def about(worth: float) -> float:
    """Return what the worths of plans have in common that differ by names and equal nodes only."""
    return float(f"{worth:.6g}")
