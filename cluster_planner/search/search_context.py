"""The means of every search for clusters: k-means groups that hold the model, estimates, a score, and a local search.

In: a problem (fleet, costs, workload, seed). Out: groups, and what was done in words. A search within some of the nodes
sees the rest of the fleet as totals that stay as they are. The phases of a search are in cluster_search.py and
large_fleets.py.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from cluster_planner.formatting import format_count, format_rate
from cluster_planner.inputs.constraints import UNCONSTRAINED
from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.memory_fit import MemoryFit
from cluster_planner.predict.objective import AveragingLimits, averaging_per_s
from cluster_planner.search.arcs import arcs_of, open_tour
from cluster_planner.search.estimates import FINE_POSITIONS, Estimator, Group
from cluster_planner.search.fleet_parts import as_fleet
from cluster_planner.search.local_search import LocalSearch, Score, Totals
from cluster_planner.search.starting_groups import embed, group_nodes, regrouped

CUT_POSITIONS = 40
"""Whole plans, which are compared by the hundred, are cut at this many positions at most."""

TOO_FEW = 100.0
"""Groupings count for this much less for each cluster that they lack of the number demanded."""

REMEMBERED = 10_000
"""About this many groups' estimates are kept, for a search and for the next one with the same load."""


LARGEST_MEAN, ENOUGH = 12, 3
"""In parts of the fleet, numbers of clusters with more nodes each, on average, are tried only until ENOUGH groupings
are known: where fewer nodes cannot hold the model.
"""

Groupings: TypeAlias = Sequence[tuple[float, tuple[Group, ...]]]
"""What groups are estimated to be worth, and the groups, the best first."""


@dataclass(frozen=True)
class SearchProblem:
    """The input of a search.

    `able` has the numbers of the nodes that can hold a unit; `least` is the least number of stages of a cluster.
    """

    fleet: Fleet
    costs: ModelCosts
    work: Workload
    able: Group
    least: int
    seed: int

    def of_part(self, nodes: Group) -> "SearchProblem":
        """Return the problem of these nodes by themselves: of a fleet that has no others, where nothing is said of
        which nodes may be together.
        """
        if self.fleet.rules.are_any or self.fleet.constraints != UNCONSTRAINED:
            return replace(self, able=nodes)
        return replace(self, fleet=as_fleet(self.fleet, nodes), able=tuple(range(len(nodes))))

    def is_alike(self, share: float) -> bool:
        """Say whether the slowest node is this part of the fastest, or more, and the same of memory: then pipelines use
        all of them.
        """
        arrays, able = self.fleet.arrays, list(self.able)
        return all(
            of_nodes[able].min() >= share * of_nodes[able].max() for of_nodes in (arrays.flops_per_s, arrays.room_bytes)
        )


class SearchContext:
    """The context of one problem: its points, estimates, scores and local search."""

    def __init__(self, problem: SearchProblem, memory_fit: MemoryFit) -> None:
        self.problem = problem
        self.rules = problem.fleet.rules
        self.points = embed(problem.fleet, problem.fleet.names)
        self.finer = SpanCosts(problem.costs, problem.work, FINE_POSITIONS)
        self.fine = SpanCosts(problem.costs, problem.work, CUT_POSITIONS)
        """The costs on as many cut positions as whole plans are cut at."""
        self._memory_fit = memory_fit
        self._estimators: dict[float, Estimator] = {}
        self._tours: dict[Group, Group] = {}

    def groupings(self, nodes: Group, k: int, restarts: int) -> Iterator[tuple[Group, ...]]:
        """Yield the ways to begin with k groups that each hold the model: k-means, and arcs of a tour. Of one k-means,
        which is quick, there are no arcs, nor where there are rules, which are about groups.
        """
        if (groups := self.grouped(nodes, k, restarts)) is not None:
            yield groups
        if self.rules.are_any or k == 1 or restarts == 1:
            return
        if nodes not in self._tours:
            self._tours[nodes] = open_tour(self.problem.fleet, nodes, self.finer.sent_bytes)
        names, arcs = self.problem.fleet.names, arcs_of(self.problem.fleet, self._tours[nodes], k)
        if arcs != groups and all(self._memory_fit.holds([names[i] for i in arc]) for arc in arcs):
            yield arcs

    def grouped(self, nodes: Group, k: int, restarts: int) -> tuple[Group, ...] | None:
        """Return k groups by the best of `restarts` k-means, repaired, or None if there are none.

        There are more than k where rules divide them.
        """
        names, rules = self.problem.fleet.names, self.rules

        def holds(group: Group) -> bool:
            return self._memory_fit.holds([names[i] for i in group])

        groups = group_nodes(
            self.points[list(nodes)],
            k,
            self.problem.seed,
            lambda group: holds(tuple(nodes[i] for i in group)),
            restarts,
        )
        if groups is None:
            return None
        chosen = [tuple(nodes[i] for i in group) for group in groups]
        if not rules.are_any:
            return tuple(chosen)
        given = (rules.atoms(nodes), rules.pinned.intersection(nodes), rules.allows)
        return regrouped(self.points, chosen, *given, holds)

    def ranked(
        self, nodes: Group, counts: Iterable[int], restarts: int, tell: Callable[[str], None] | None = None
    ) -> Groupings:
        """Return (score, groups) of k-means and of arcs for each of these numbers of clusters that is feasible, best
        first, and `tell` of each number. Where nobody is told, it ends after ENOUGH at numbers of large clusters.
        """
        found: list[tuple[float, tuple[Group, ...]]] = []
        estimator, score = self.estimator(1, AveragingLimits()), self.score(AveragingLimits(), Totals())
        for k in counts:
            if tell is None and len(nodes) > LARGEST_MEAN * k and len(found) >= ENOUGH:
                break
            ways = [(score(Totals().plus(estimator.of(one))), one) for one in self.groupings(nodes, k, restarts)]
            found += ways
            words = f"worth about {format_rate(max(ways)[0])}" if ways else "no grouping in which each holds the model"
            if tell is not None:
                tell(f"{format_count(k, 'cluster')}: {words}")
        return sorted(found, key=lambda one: (-one[0], len(one[1])))

    def estimator(self, clusters: float, conditions: AveragingLimits) -> Estimator:
        """Return an estimator under the load of averaging with so many clusters.

        The last one is given again as long as the load is about the same and it has not too much to remember.
        """
        problem = self.problem
        load = float(f"{averaging_per_s(clusters, conditions.samples_per_s, problem.work):.2g}")
        if load not in self._estimators or self._estimators[load].asked > REMEMBERED:
            self._estimators = {load: Estimator(problem.fleet, self.fine.coarse, problem.least, load, self.finer)}
        return self._estimators[load]

    def score(self, conditions: AveragingLimits, others: Totals) -> Score:
        """Return a function that gives the approximate objective of clusters beside those others."""
        work, least = self.problem.work, self.rules.min_clusters

        def score(totals: Totals) -> float:
            clusters, rate, value = (mine + theirs for mine, theirs in zip(totals, others, strict=True))
            worth = conditions.worth(clusters, rate, value, work)
            return worth / (1.0 + TOO_FEW * max(0.0, least - clusters))

        return score

    def searched(
        self, nodes: Group, groups: tuple[Group, ...], conditions: AveragingLimits, others: Totals, per_node: int
    ) -> tuple[tuple[Group, ...], str]:
        """Return the groups after a local search within `nodes`, and what it did in words. `per_node`: how many groups
        it may estimate for each.
        """
        estimator = self.estimator(len(groups) + others.clusters, conditions)
        known, rules = estimator.asked, self.rules
        search = LocalSearch(
            estimator, self.score(conditions, others), self.points, rules.atoms(nodes), rules.allows, rules.pinned
        )
        groups, settled = search.improve(groups, per_node * len(nodes), self.problem.seed)
        words = f"{format_count(estimator.asked - known, 'group')} estimated"
        return groups, words + ("" if settled else ", stopped at its limit")
