"""Which nodes form clusters: from k-means for every feasible number of them to groups that no small change betters.

Decides the phases. For each number of clusters k, k-means (clustering.py) on the embedding, repaired for memory; groups
are compared by estimates (estimates.py) under the objective. From the best of them a local search (local_search.py);
what it finds is worked out exactly (candidates.py), which tells the rings' figures and averaging's load for the next
search. The best plan worked out is kept. Of up to EXHAUSTIVE_NODES nodes all partitions are looked at. More than
blocks.LARGEST nodes are searched block by block, each as if the others were like it, and then once more with the
others as they are: so time grows with the number of nodes, not with its square.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cluster_planner.blocks import LARGEST, blocks_of, joined
from cluster_planner.candidates import Assembler, Candidate, Conditions, averaging_per_s, conditions_of
from cluster_planner.clustering import group_nodes
from cluster_planner.costs import ModelCosts, Workload
from cluster_planner.embedding import embed
from cluster_planner.estimates import POSITIONS, Estimate, Estimator, Group
from cluster_planner.fleet import Fleet
from cluster_planner.holding import Holding
from cluster_planner.journal import Step
from cluster_planner.local_search import LocalSearch, Score
from cluster_planner.mending import mended
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

PER_NODE, PER_NODE_OF_A_BLOCK = 40, 5
"""How many groups a local search may estimate for each node."""

TOO_FEW = 100.0
"""How much less groupings count for each cluster that they lack of the number demanded."""

SURVEYED = 3
"""Blocks in which every k is tried; the others try what was good there, and a little more and less."""

Tell = Callable[[Step], None]


@dataclass(frozen=True)
class Problem:
    """What is searched for. `able`: the numbers of the nodes that can hold a unit."""

    fleet: Fleet
    costs: ModelCosts
    work: Workload
    able: Group
    least: int
    seed: int


@dataclass(frozen=True)
class Others:
    """What a search within some of the nodes takes the rest of the fleet to be: `like` times what it finds itself, and
    these clusters.
    """

    like: float = 0.0
    clusters: float = 0.0
    samples_per_s: float = 0.0
    value: float = 0.0


class Search:
    """One search over groupings."""

    def __init__(self, problem: Problem, spans: SpanCosts, holding: Holding, tell: Tell) -> None:
        self._problem, self._holding, self._tell = problem, holding, tell
        self._few = SpanCosts(problem.costs, problem.work, POSITIONS)
        self._assembler = Assembler(problem.fleet, spans, self._few, problem.least)
        self._points = embed(problem.fleet, problem.fleet.names)
        self._rules = problem.fleet.rules
        self._best: Candidate | None = None

    def best(self) -> Candidate | None:
        """The best plan found; None where none is."""
        able = self._problem.able
        if len(able) > LARGEST and self._by_blocks():
            return self._best
        starts = self._starts(able, _counts(len(able), self._problem.least), Others())
        if starts:
            self._work_out("k-means", starts[0][1])
        conditions = Conditions() if self._best is None else conditions_of(self._best)
        for _, groups in starts[: STARTS if len(able) <= FEW_NODES else 1]:
            self._improve(groups, conditions)
        if len(able) <= EXHAUSTIVE_NODES:
            self._all_partitions()
        return self._best

    def _by_blocks(self) -> bool:
        """Whether the fleet could be planned block by block: each block has to hold the model."""
        problem = self._problem
        blocks = joined(blocks_of(self._points, problem.able), self._rules.atoms(problem.able))
        good: list[float] = []
        found: list[tuple[Group, ...]] = []
        for block in blocks:
            others = Others(like=len(problem.able) / len(block) - 1)
            mean = sum(good) / len(good) if good else 0.0
            counts = _counts(len(block), problem.least)
            if len(good) >= SURVEYED:
                counts = iter(sorted({max(1, round(mean * len(block) * part)) for part in (1.0, 0.85, 1.2)}))
            starts = self._starts(block, counts, others)
            if not starts:
                if len(good) < SURVEYED:
                    return False
                found.append(())
                continue
            groups, _ = self._searched(block, starts[0][1], Conditions(), others)
            good.append(len(groups) / len(block))
            found.append(groups)
        found = self._kept(found, Conditions())
        self._work_out("blocks", [group for groups in found for group in groups], f"{len(blocks)} blocks")
        if self._best is None:
            return False
        again = self._kept(self._once_more(blocks, found), conditions_of(self._best))
        self._work_out("local search", [group for groups in again for group in groups], "with the others as they are")
        return True

    def _once_more(self, blocks: Sequence[Group], found: Sequence[tuple[Group, ...]]) -> list[tuple[Group, ...]]:
        assert self._best is not None
        conditions = conditions_of(self._best)
        estimator = self._estimator(sum(map(len, found)), conditions)
        sums = [(len(groups), *_sums(estimator.of(groups))) for groups in found]
        total = [sum(column) for column in zip(*sums, strict=True)]
        again = []
        for block, groups, mine in zip(blocks, found, sums, strict=True):
            others = Others(0.0, *(everyone - part for everyone, part in zip(total, mine, strict=True)))
            again.append(self._searched(block, groups, conditions, others)[0] if groups else groups)
        return again

    def _kept(self, found: Sequence[tuple[Group, ...]], conditions: Conditions) -> list[tuple[Group, ...]]:
        """Without the clusters that the fleet is better without: values add up, so as many of the best stay as pay."""
        estimates = self._estimator(sum(map(len, found)), conditions).of(group for groups in found for group in groups)
        best_first = sorted(estimates, key=lambda one: -one.value)
        score = self._score(conditions, Others())
        counts = range(1, len(best_first) + 1)
        pays = max(counts, key=lambda count: score(best_first[:count]), default=0)
        least = best_first[pays - 1].value if pays else 0.0
        worth = iter(estimates)
        pinned = self._rules.pinned
        return [
            tuple(group for group in groups if next(worth).value >= least or not pinned.isdisjoint(group))
            for groups in found
        ]

    def _starts(self, nodes: Group, counts: Iterator[int], others: Others) -> list[tuple[float, tuple[Group, ...]]]:
        """(score, groups) for each number of clusters that is feasible, best first."""
        found: list[tuple[float, tuple[Group, ...]]] = []
        estimator = self._estimator(1, Conditions())
        score = self._score(Conditions(), others)
        for k in counts:
            if len(nodes) > LARGEST_MEAN * k and len(found) >= STARTS:
                break
            groups = self._grouped(nodes, k)
            if groups is None:
                words = f"{k} clusters: the nodes cannot be grouped so that each holds the model"
            else:
                found.append((score(estimator.of(groups)), groups))
                words = f"{k} clusters: worth about {found[-1][0]:.4g}"
            self._tell(Step("k-means", words, self._best_objective, 0.0))
        return sorted(found, key=lambda one: (-one[0], len(one[1])))

    def _grouped(self, nodes: Group, k: int) -> tuple[Group, ...] | None:
        names = self._problem.fleet.names
        groups = group_nodes(
            self._points[list(nodes)],
            k,
            self._problem.seed,
            lambda group: self._holding.holds([names[nodes[i]] for i in group]),
        )
        if groups is None:
            return None
        chosen = [tuple(nodes[i] for i in group) for group in groups]
        if not self._rules.are_any:
            return tuple(chosen)
        rules, holds = self._rules, self._holding.holds
        given = (rules.atoms(nodes), rules.pinned.intersection(nodes), rules.allows)
        return mended(self._points, chosen, *given, lambda group: holds([names[i] for i in group]))

    def _improve(self, groups: tuple[Group, ...], conditions: Conditions) -> None:
        for _ in range(ROUNDS):
            groups, words = self._searched(self._problem.able, groups, conditions, Others())
            before = self._best_objective
            found = self._work_out("local search", groups, words)
            if found is None or found.objective <= before * (1 + 1e-6):
                return
            conditions = conditions_of(found)

    def _searched(
        self, nodes: Group, groups: tuple[Group, ...], conditions: Conditions, others: Others
    ) -> tuple[tuple[Group, ...], str]:
        """The groups after a local search within `nodes`, and what it did in words."""
        problem = self._problem
        estimator = self._estimator(len(groups) * (1 + others.like) + others.clusters, conditions)
        rules = self._rules
        given = (self._points, rules.atoms(nodes), rules.allows, rules.pinned)
        search = LocalSearch(estimator, self._score(conditions, others), *given)
        per_node = PER_NODE if len(nodes) == len(problem.able) else PER_NODE_OF_A_BLOCK
        groups, settled = search.improve(groups, per_node * len(nodes), problem.seed)
        return groups, f"{estimator.asked} groups estimated" + ("" if settled else ", stopped at its limit")

    def _estimator(self, clusters: float, conditions: Conditions) -> Estimator:
        load = averaging_per_s(clusters, conditions.samples_per_s, self._problem.work)
        return Estimator(self._problem.fleet, self._few, self._problem.least, float(f"{load:.2g}"))

    def _all_partitions(self) -> None:
        if self._best is None and not self._rules.are_any:
            return
        conditions = Conditions() if self._best is None else conditions_of(self._best)
        names, work, rules = self._problem.fleet.names, self._problem.work, self._rules
        optional = set(self._problem.able) - rules.pinned if rules.are_any else set()
        for clusters in range(1, len(self._problem.able) // self._problem.least + 1):
            load = float(f"{averaging_per_s(clusters, conditions.samples_per_s, work):.2g}")

            def value_of(group: Group, load: float = load) -> float:
                if not rules.allows(group):
                    return 0.0
                found = self._assembler.pipeline(tuple(names[i] for i in group), load)
                return 0.0 if found is None else found.value

            for groups in best_partitions(self._problem.able, clusters, self._problem.least, value_of, optional):
                self._work_out("all partitions", groups, f"{clusters} clusters")

    def _work_out(self, phase: str, groups: Sequence[Group], words: str = "") -> Candidate | None:
        names = self._problem.fleet.names
        named = [tuple(names[i] for i in group) for group in groups]
        rate = 0.0 if self._best is None else self._best.forecast.prediction.samples_per_s
        found = self._assembler.candidate(named, rate) if named and self._is_allowed(groups) else None
        before = self._best
        if found is not None and found.objective > self._best_objective * (1 + 1e-9):
            self._best = found
        gained = self._best_objective - (0.0 if before is None else before.objective)
        self._tell(
            Step(
                phase,
                f"{words}: {_outcome(before, found)}" if words else _outcome(before, found),
                self._best_objective,
                gained,
            )
        )
        return found

    def _is_allowed(self, groups: Sequence[Group]) -> bool:
        rules = self._rules
        runs = {node for group in groups for node in group}
        return len(groups) >= rules.min_clusters and rules.pinned <= runs and all(map(rules.allows, groups))

    @property
    def _best_objective(self) -> float:
        return 0.0 if self._best is None else self._best.objective

    def _score(self, conditions: Conditions, others: Others) -> Score:
        work = self._problem.work

        def score(estimates: Sequence[Estimate]) -> float:
            rate, value = _sums(estimates)
            clusters = len(estimates) * (1 + others.like) + others.clusters
            rate, value = rate * (1 + others.like) + others.samples_per_s, value * (1 + others.like) + others.value
            worth = conditions.worth(clusters, rate, value, work)
            lacking = max(0.0, self._rules.min_clusters - clusters)
            return worth / (1.0 + TOO_FEW * lacking)

        return score


def _outcome(before: Candidate | None, found: Candidate | None) -> str:
    if found is None:
        return "no plan"
    stages = sum(len(cluster.stages) for cluster in found.clusters)
    words = f"{len(found.clusters)} clusters of {stages} nodes, worth {found.objective:.4g}"
    return words if before is None else f"{words} (before: {len(before.clusters)}, {before.objective:.4g})"


def _sums(estimates: Sequence[Estimate]) -> tuple[float, float]:
    """Samples/s and value of them all."""
    return sum(one.samples_per_s for one in estimates), sum(one.value for one in estimates)


def _counts(nodes: int, least: int) -> Iterator[int]:
    """Numbers of clusters to try, from many to few."""
    counts, k = [], 1
    while k <= nodes // least:
        counts.append(k)
        k = k + 1 if k < EVERY_K else k + k // 4
    return reversed(counts)
