"""Which nodes form clusters: from k-means for every feasible number of them to groups that no small change betters.

Decides the phases. For each number of clusters k, k-means (clustering.py) on the embedding, repaired for memory; groups
are compared by estimates (estimates.py) under the objective. From the best STARTS of them a local search
(local_search.py); what it finds is worked out exactly (candidates.py), which tells the rings' figures and averaging's
load for the next search. The best plan worked out is kept. Of up to EXHAUSTIVE nodes all partitions are looked at.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cluster_planner.candidates import Assembler, Candidate, Conditions, averaging_per_s, conditions_of
from cluster_planner.clustering import group_nodes
from cluster_planner.costs import ModelCosts, Workload
from cluster_planner.embedding import embed
from cluster_planner.estimates import POSITIONS, Estimate, Estimator, Group
from cluster_planner.fleet import Fleet
from cluster_planner.holding import Holding
from cluster_planner.local_search import LocalSearch
from cluster_planner.partitions import EXHAUSTIVE_NODES, best_partitions
from cluster_planner.spans import SpanCosts

EVERY_K = 8
LARGEST_MEAN = 12
"""Numbers of clusters with more nodes each, on average, are tried only where fewer nodes cannot hold the model."""

STARTS = 3
FEW_NODES = 24
"""Of fleets of more nodes, only the best k is searched from: splits and merges find the others."""

ROUNDS = 3
"""Local searches in a row, each with the figures of the plan before."""

PER_NODE = 60
"""How many groups a local search may estimate for each node, up to PER_FLEET in all."""

PER_FLEET = 3000

Tell = Callable[[str, str, Candidate | None], None]
"""Told of each phase: its name, what it did, and the best plan worked out so far."""


@dataclass(frozen=True)
class Problem:
    """What is searched for. `able`: the numbers of the nodes that can hold a unit."""

    fleet: Fleet
    costs: ModelCosts
    work: Workload
    able: Group
    least: int
    seed: int


class Search:
    """One search over groupings."""

    def __init__(self, problem: Problem, spans: SpanCosts, holding: Holding, tell: Tell) -> None:
        self._problem, self._holding, self._tell = problem, holding, tell
        self._few = SpanCosts(problem.costs, problem.work, POSITIONS)
        self._assembler = Assembler(problem.fleet, spans, self._few, problem.least)
        self._points = embed(problem.fleet, problem.fleet.names)
        self._best: Candidate | None = None

    def best(self) -> Candidate | None:
        """The best plan found; None where none is."""
        starts = self._starts()
        if starts:
            self._work_out("k-means", starts[0][1])
        conditions = Conditions() if self._best is None else conditions_of(self._best)
        for _, groups in starts[: STARTS if len(self._problem.able) <= FEW_NODES else 1]:
            self._improve(groups, conditions, ROUNDS)
        if len(self._problem.able) <= EXHAUSTIVE_NODES:
            self._all_partitions()
        return self._best

    def _starts(self) -> list[tuple[float, tuple[Group, ...]]]:
        """(score, groups) for each number of clusters that is feasible, best first."""
        found: list[tuple[float, tuple[Group, ...]]] = []
        estimator = Estimator(self._problem.fleet, self._few, self._problem.least, 0.0)
        score = self._score(Conditions())
        for k in _counts(len(self._problem.able), self._problem.least):
            if len(self._problem.able) > LARGEST_MEAN * k and len(found) >= STARTS:
                break
            groups = self._grouped(k)
            if groups is None:
                self._tell(
                    "k-means", f"{k} clusters: the nodes cannot be grouped so that each holds the model", self._best
                )
                continue
            worth = score(estimator.of(groups))
            self._tell("k-means", f"{k} clusters: worth about {worth:.4g}", self._best)
            found.append((worth, groups))
        return sorted(found, key=lambda one: (-one[0], len(one[1])))

    def _grouped(self, k: int) -> tuple[Group, ...] | None:
        able, names = self._problem.able, self._problem.fleet.names
        groups = group_nodes(
            self._points[list(able)],
            k,
            self._problem.seed,
            lambda group: self._holding.holds([names[able[i]] for i in group]),
        )
        return None if groups is None else tuple(tuple(able[i] for i in group) for group in groups)

    def _improve(self, groups: tuple[Group, ...], conditions: Conditions, rounds: int) -> None:
        problem = self._problem
        most = min(PER_NODE * len(problem.able), PER_FLEET)
        for _ in range(rounds):
            load = averaging_per_s(len(groups), conditions.samples_per_s, problem.work)
            estimator = Estimator(problem.fleet, self._few, problem.least, float(f"{load:.2g}"))
            search = LocalSearch(
                estimator, self._score(conditions), self._points, [(node,) for node in problem.able], lambda _: True
            )
            groups, settled = search.improve(groups, most, problem.seed)
            words = "" if settled else ", stopped at its limit"
            found = self._work_out("local search", groups, f"{estimator.asked} groups estimated{words}")
            if found is None or found.objective < self._best_objective:
                return
            conditions = conditions_of(found)

    def _all_partitions(self) -> None:
        if self._best is None:
            return
        conditions = conditions_of(self._best)
        names, work = self._problem.fleet.names, self._problem.work
        for clusters in range(1, len(self._problem.able) // self._problem.least + 1):
            load = float(f"{averaging_per_s(clusters, conditions.samples_per_s, work):.2g}")

            def value_of(group: Group, load: float = load) -> float:
                found = self._assembler.pipeline(tuple(names[i] for i in group), load)
                return 0.0 if found is None else found.value

            for groups in best_partitions(self._problem.able, clusters, self._problem.least, value_of):
                self._work_out("all partitions", groups, f"{clusters} clusters")

    def _work_out(self, phase: str, groups: Sequence[Group], words: str = "") -> Candidate | None:
        names = self._problem.fleet.names
        named = [tuple(names[i] for i in group) for group in groups]
        rate = 0.0 if self._best is None else self._best.forecast.prediction.samples_per_s
        found = self._assembler.candidate(named, rate) if named else None
        if found is not None and found.objective > self._best_objective * (1 + 1e-9):
            self._best = found
        self._tell(phase, words or f"{len(groups)} clusters", self._best)
        return found

    @property
    def _best_objective(self) -> float:
        return 0.0 if self._best is None else self._best.objective

    def _score(self, conditions: Conditions) -> Callable[[Sequence[Estimate]], float]:
        work = self._problem.work

        def score(estimates: Sequence[Estimate]) -> float:
            if any(one.value <= 0 for one in estimates):
                return 0.0
            rate, value = sum(one.samples_per_s for one in estimates), sum(one.value for one in estimates)
            return conditions.worth(len(estimates), rate, value, work)

        return score


def _counts(nodes: int, least: int) -> Iterator[int]:
    """Numbers of clusters to try, from many to few."""
    counts, k = [], 1
    while k <= nodes // least:
        counts.append(k)
        k = k + 1 if k < EVERY_K else k + k // 4
    return reversed(counts)
