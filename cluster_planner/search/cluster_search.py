"""The search for clusters: from k-means for every feasible number of them to groups that no small change betters.

For each number of clusters k, k-means on the embedding is repaired for memory (starting_groups.py); groups are compared
by estimates (estimates.py) under the objective. From the best of them a local search starts (local_search.py). What it
finds is worked out exactly (candidates.py), which gives the rings' figures and averaging's load for the next search.
The best plan worked out is kept. Of up to EXHAUSTIVE_NODES nodes all partitions are looked at. More than
large_fleets.LARGEST nodes are searched block by block. Each step is told as a `Step`, for those who want to know why a
plan is as it is.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from cluster_planner.formatting import format_count
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.memory_fit import MemoryFit
from cluster_planner.predict.objective import AveragingLimits, averaging_per_s
from cluster_planner.search.candidates import Assembler, Candidate, averaging_limits_of
from cluster_planner.search.estimates import Group
from cluster_planner.search.large_fleets import LARGEST, by_blocks
from cluster_planner.search.local_search import Totals
from cluster_planner.search.search_context import SearchContext, SearchProblem
from cluster_planner.search.starting_groups import RESTARTS

EVERY_K = 8

LARGEST_MEAN = 12
"""Numbers of clusters with more nodes each, on average, are tried only if fewer nodes cannot hold the model."""

STARTS = 3

FEW_NODES = 24
"""In fleets of more nodes, only the best k is searched from: splits and merges find the others."""

ROUNDS = 3
"""The number of local searches in a row, each with the figures of the plan before."""

PER_NODE = 40
"""The number of groups that a local search may estimate for each node."""

EXHAUSTIVE_NODES = 7

KEPT = 3
"""The number of best divisions of each set that are kept."""


@dataclass(frozen=True)
class Step:
    """One step of a search.

    `objective` is that of the best plan worked out so far, 0 before there is one; `gained` is this step's part of it.
    """

    phase: str
    words: str
    objective: float
    gained: float

    def __str__(self) -> str:
        best = f"; best so far {self.objective:.4g}" if self.objective > 0 else ""
        return f"{self.phase}: {self.words}{best}"


Tell = Callable[[Step], None]


class Search:
    """One search for clusters, which `best` runs."""

    def __init__(self, problem: SearchProblem, spans: SpanCosts, holding: MemoryFit, tell: Tell) -> None:
        self._problem, self._tell = problem, tell
        self._ground = SearchContext(problem, holding)
        self._rules = problem.fleet.rules
        self._assembler = Assembler(problem.fleet, spans, self._ground.few, problem.least)
        self._best: Candidate | None = None

    def best(self) -> Candidate | None:
        """Return the best plan found, or None where none is."""
        able = self._problem.able
        if len(able) > LARGEST and by_blocks(self._ground, self._work_out) is not None:
            return self._best
        starts = self._starts(able, _counts(len(able), self._problem.least))
        if starts:
            self._work_out("k-means", starts[0][1], "")
        conditions = AveragingLimits() if self._best is None else averaging_limits_of(self._best)
        for _, groups in starts[: STARTS if len(able) <= FEW_NODES else 1]:
            self._improve(groups, conditions)
        if len(able) <= EXHAUSTIVE_NODES:
            self._all_partitions()
        return self._best

    def _starts(self, nodes: Group, counts: Iterator[int]) -> list[tuple[float, tuple[Group, ...]]]:
        """Return (score, groups) for each number of clusters that is feasible, best first."""
        found: list[tuple[float, tuple[Group, ...]]] = []
        estimator = self._ground.estimator(1, AveragingLimits())
        score = self._ground.score(AveragingLimits(), Totals())
        for k in counts:
            if len(nodes) > LARGEST_MEAN * k and len(found) >= STARTS:
                break
            groups = self._ground.grouped(nodes, k, RESTARTS)
            if groups is None:
                words = f"{format_count(k, 'cluster')}: the nodes cannot be grouped so that each holds the model"
            else:
                found.append((score(Totals().plus(estimator.of(groups))), groups))
                words = f"{format_count(k, 'cluster')}: worth about {found[-1][0]:.4g}"
            self._tell(Step("k-means", words, self._best_objective, 0.0))
        return sorted(found, key=lambda one: (-one[0], len(one[1])))

    def _improve(self, groups: tuple[Group, ...], conditions: AveragingLimits) -> None:
        for _ in range(ROUNDS):
            groups, words = self._ground.searched(self._problem.able, groups, conditions, Totals(), PER_NODE)
            before = self._best_objective
            found = self._work_out("local search", groups, words)
            if found is None or found.objective <= before * (1 + 1e-6):
                return
            conditions = averaging_limits_of(found)

    def _all_partitions(self) -> None:
        if self._best is None and not self._rules.are_any:
            return
        conditions = AveragingLimits() if self._best is None else averaging_limits_of(self._best)
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
                self._work_out("all partitions", groups, format_count(clusters, "cluster"))

    def _work_out(self, phase: str, groups: Sequence[Group], words: str, expected: float = 0.0) -> Candidate | None:
        """`expected`: samples/s of the fleet, as far as no plan has told them yet."""
        names = self._problem.fleet.names
        named = [tuple(names[i] for i in group) for group in groups]
        rate = expected if self._best is None else self._best.forecast.prediction.samples_per_s
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


def _outcome(before: Candidate | None, found: Candidate | None) -> str:
    if found is None:
        return "no plan"
    stages = sum(len(cluster.stages) for cluster in found.clusters)
    words = (
        f"{format_count(len(found.clusters), 'cluster')} of {format_count(stages, 'node')}, worth {found.objective:.4g}"
    )
    return words if before is None else f"{words} (before: {len(before.clusters)}, {before.objective:.4g})"


def _counts(nodes: int, least: int) -> Iterator[int]:
    """Return the numbers of clusters to try, from many to few."""
    counts, k = [], 1
    while k <= nodes // least:
        counts.append(k)
        k = k + 1 if k < EVERY_K else k + k // 4
    return reversed(counts)


def best_partitions(
    nodes: Sequence[int],
    clusters: int,
    least: int,
    value_of: Callable[[Group], float],
    optional: Collection[int] = (),
) -> tuple[tuple[Group, ...], ...]:
    """Return up to KEPT divisions of all nodes, but for some that are `optional`, into so many groups of `least` or
    more, best first; groups worth 0 are none.
    """
    everyone = (1 << len(nodes)) - 1
    groups = {
        bits: tuple(node for i, node in enumerate(nodes) if bits >> i & 1)
        for bits in range(1, everyone + 1)
        if bits.bit_count() >= least
    }
    values = {bits: value for bits, group in groups.items() if (value := value_of(group)) > 0}
    left_out = sum(1 << i for i, node in enumerate(nodes) if node in optional)
    best: dict[int, list[tuple[float, tuple[int, ...]]]] = {
        bits: [(0.0, ())] for bits in range(everyone + 1) if not bits & ~left_out
    }
    for _ in range(clusters):
        found: dict[int, list[tuple[float, tuple[int, ...]]]] = {}
        for done, ways in best.items():
            first = (done + 1) & ~done  # the lowest node that no group has yet
            for bits, value in values.items():
                if bits & done or not bits & first:
                    continue
                found.setdefault(done | bits, []).extend((value + worth, (*way, bits)) for worth, way in ways)
        best = {done: sorted(ways, reverse=True)[:KEPT] for done, ways in found.items()}
    return tuple(tuple(groups[bits] for bits in way) for _, way in best.get(everyone, []))
