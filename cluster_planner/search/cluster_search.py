"""The search for clusters: from many starts to a plan that no small change betters.

For each number of clusters k, k-means on the embedding is repaired for memory (starting_groups.py), and a tour of the
nodes is divided into k arcs of equal memory (arcs.py). Groups are compared by estimates (estimates.py) under the
objective. From the best of them a local search starts (local_search.py). What it finds is worked out exactly
(candidates.py), which gives the rings' figures and averaging's load for the next search.
Of up to EXHAUSTIVE_NODES nodes all partitions are looked at.

With more nodes, whole plans are compared too, each with its rings (plan_worths.py): the groups of every k, plans whose
stages are groups of neighbours, or that cover the model as often as a round allows (whole_starts.py), and those of
parts of the fleet (fleet_parts.py). From the best hill climbing starts (whole_plans.py). More than large_fleets.LARGEST
nodes are searched block by block before. Where the best plan of many runs few, the core is looked at (fleet_parts.py).
"""

from collections.abc import Iterable, Iterator, Sequence

from cluster_planner.formatting import format_count
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.memory_fit import MemoryFit
from cluster_planner.predict.objective import AveragingLimits
from cluster_planner.predict.plan_worths import PlanWorths
from cluster_planner.predict.upper_bound import best_possible
from cluster_planner.search.candidates import Assembler, Candidate, averaging_limits_of
from cluster_planner.search.climbed_starts import CLIMBED, Start, Starts, about, climbed, run_by
from cluster_planner.search.estimates import Group
from cluster_planner.search.few_nodes import MOVES, climbed_divisions, climbed_further
from cluster_planner.search.fleet_parts import MOST_IN_PARTS, core_of, likely_parts, parts_of
from cluster_planner.search.large_fleets import LARGEST, by_blocks
from cluster_planner.search.local_search import Totals
from cluster_planner.search.partitions import Divisions
from cluster_planner.search.search_context import Groupings, SearchContext, SearchProblem
from cluster_planner.search.small_moves import with_small_moves
from cluster_planner.search.starting_groups import EVERY_K, RESTARTS, counts_to_try
from cluster_planner.search.steps import Step, Tell, outcome, unheard
from cluster_planner.search.whole_plans import Clusters, WholePlans
from cluster_planner.search.whole_starts import by_neighbours, covering, lone_nodes

STARTS, FEW_NODES = 3, 24
"""In fleets of more nodes, only the best k is searched from: splits and merges find the others."""

ROUNDS = 3
"""The number of local searches in a row, each with the figures of the plan before."""

ESTIMATES_PER_NODE = 40
"""The number of groups that a local search may estimate for each node."""

EXHAUSTIVE_NODES = 7

PROMISING = 0.9
"""In such fleets a grouping is worked out only where it is estimated, with nothing averaged, to be worth this part of
the best plan.
"""

STARVING = 1.1
"""In such fleets groups are not searched locally where plans with stages of neighbours are worth so many times those of
k-means: averaging starves there, and estimates of groups rank nothing.
"""

WORKED_OUT, ALIKE = 6, 0.9
"""The number of groupings of more than FEW_NODES nodes that are worked out where the slowest node is this part of the
fastest, and the same of memory.
"""

FEW_CLUSTERS, FEW_OF_PARTS, FEW_TIMES_NODES = 5, 4, 400
"""So many and fewer are worked out in any case, but FEW_TIMES_NODES / nodes at most: they are estimated far too low."""

GLIMPSED, GLIMPSES, PARTS_SEARCHED, NEARLY = 12, 60, 6, 0.8
"""From the starts of so many parts hill climbing tries so many changes, and so many of these parts are searched. In
larger fleets the best CLIMBED are, where they have up to FEW_NODES nodes and a start worth NEARLY as much as the best
plan, this part of it.
"""

HOPEFUL = 0.6
"""Starts with stages of neighbours, and covers, are judged where they could be worth this part of the best plan."""

LARGEST_PART = 0.6
"""In larger fleets no larger part is looked at: the plan of all leaves a few nodes out by itself."""

DEPTH, GLIMPSED_WITHIN = 3, 3
"""Where the best plan is that of a part, GLIMPSED_WITHIN parts of that part are climbed from, and one is searched, and
so on, as long as that gains, but no deeper than DEPTH.
"""

ACROSS, MOST_ACROSS = 4, 250
"""Of plans with stages of neighbours those that are worth most roughly are worked out, so many; of more nodes none."""


class Search:
    """One search for clusters, which `best` runs. `found`: the best plan so far. `is_part`: it is one of a part of the
    fleet, which looks at no parts of its own, and climbs less. `above`: only plans that are worth more are of interest.
    """

    def __init__(
        self,
        problem: SearchProblem,
        spans: SpanCosts,
        memory_fit: MemoryFit,
        tell: Tell,
        *,
        is_part: bool = False,
        above: float = 0.0,
    ) -> None:
        self._problem, self._tell, self._is_part, self._above = problem, tell, is_part, above
        self._context, self._rules = SearchContext(problem, memory_fit), problem.fleet.rules
        self._assembler = Assembler(problem.fleet, spans, problem.least)
        self._worths = PlanWorths(problem.fleet, spans)
        self._spans, self._memory_fit = spans, memory_fit
        self._climbers: dict[Group, WholePlans] = {}
        self.found: Candidate | None = None
        self._starts, self._searched = Starts(), set[Group]()
        self._best_of, self._best_words = problem.able, ""

    def best(self, *starts_from: Clusters) -> Candidate | None:
        """Return the best plan found, or None where none is. `starts_from`: plans that are known."""
        for clusters in starts_from:
            self._offer("known", clusters)
        able, tell = self._problem.able, self._tell
        if len(able) > LARGEST and by_blocks(self._context, self._work_out) is not None:
            if len(able) <= MOST_ACROSS:
                self._across()
            self._alone()
            self._climb()
            return self.found
        counts = counts_to_try(len(able), self._problem.least)
        starts = self._context.ranked(
            able, counts, RESTARTS, lambda words: tell(Step("k-means", words, self._best_objective, 0.0))
        )
        if len(able) <= EXHAUSTIVE_NODES:
            self._locally(starts)
            if self.found is not None or self._rules.are_any:
                self._all_partitions()
            return self.found
        few = min(FEW_CLUSTERS, FEW_TIMES_NODES // len(able))
        alike = len(able) > FEW_NODES and self._problem.is_alike(ALIKE)
        near = self._keep("k-means", self._likely(starts, few) if alike else self._promising(starts, few))
        if len(able) <= FEW_NODES:
            self._locally(starts)
            self._across()
        elif self._across() <= near * STARVING and (len(able) <= MOST_IN_PARTS or self.found is None):
            self._locally(starts)
        self._alone()
        if not self._is_part:
            self._parts()
        self._climb()
        return self.found

    def further(self, clusters: Clusters) -> Candidate | None:
        """Return the best plan that parts, and climbing, find beside one that is known."""
        self._offer("known", clusters)
        self._parts()
        self._climb()
        return self.found

    def _locally(self, starts: Groupings) -> None:
        """Work out the grouping that is estimated to be best, and search locally from the best few."""
        if starts:
            self._work_out("k-means", starts[0][1], "")
        conditions = AveragingLimits() if self.found is None else averaging_limits_of(self.found)
        for _, groups in starts[: STARTS if len(self._problem.able) <= FEW_NODES else 1]:
            self._improve(groups, conditions)

    def _keep(self, phase: str, groupings: Iterable[Sequence[Group]], words: str = "") -> float:
        """Work out what each of these groupings is worth as a whole, and return the most that one is worth."""
        names, most = self._problem.fleet.names, 0.0
        for groups in groupings:
            if self._is_allowed(groups):
                clusters = self._assembler.clusters([tuple(names[i] for i in group) for group in groups])
                if clusters is not None:
                    most = max(most, self._offer(phase, clusters, words))
        return most

    def _promising(self, starts: Groupings, few: int) -> Iterator[tuple[Group, ...]]:
        """Yield those of few clusters, and in larger fleets others only where the estimate is PROMISING by then."""
        share = 0.0 if len(self._problem.able) <= FEW_NODES else PROMISING
        for score, groups in starts:
            if score == 0.0 or score >= share * self._best_objective or len(groups) <= few:
                yield groups

    def _likely(self, starts: Groupings, few: int) -> list[tuple[Group, ...]]:
        """Return those that are worth most, roughly, with pipelines along short tours. Such that are estimated to be
        worth far less are not looked at, but for those of few clusters.
        """
        names, found, most = self._problem.fleet.names, [], 0.0
        for score, groups in starts:
            if score < PROMISING * most and len(groups) > few:
                continue
            clusters = self._assembler.along_tours([tuple(names[i] for i in group) for group in groups])
            if clusters is not None:
                worth = self._worths.of(clusters, roughly=True)
                most = max(most, worth)
                found.append((worth, groups))
        return [groups for _, groups in sorted(found, key=lambda one: -one[0])[:WORKED_OUT]]

    def _offer(self, phase: str, clusters: Clusters, words: str = "", nodes: Group | None = None) -> float:
        """Return what a plan is worth, which is remembered, and taken if it is the best so far; 0 where it has fewer
        clusters than are demanded. `nodes`: those that it was made of, where these are a part of all.
        """
        if len(clusters) < self._rules.min_clusters:
            return 0.0
        worth = self._worths.of(clusters)
        self._starts.remember(Start(worth, clusters, self._problem.able if nodes is None else nodes))
        if worth > self._best_objective * (1 + 1e-9) and (
            (found := self._assembler.of_clusters(clusters)).objective > self._best_objective
        ):
            before, self.found = self.found, found
            self._best_of, self._best_words = (self._problem.able, "") if nodes is None else (nodes, words)
            self._report(phase, words, before, found)
        return worth

    def _alone(self) -> None:
        """Offer the plan of each node by itself, the fastest first, while one may be worth more than the best."""
        for most, node in lone_nodes(self._problem, self._spans, self._memory_fit):
            if most <= self._best_objective:
                return
            self._keep("one node", [((node,),)], self._problem.fleet.nodes[node].name)

    def _parts(self) -> None:
        """Offer plans of parts of the fleet, then of parts of that part whose plan is the best."""
        problem, starts = self._problem, dict[Group, tuple[float, Clusters]]()
        few, within, where = len(problem.able) <= MOST_IN_PARTS, problem.able, ""

        def started(nodes: Group) -> float:
            if nodes not in starts:
                starts[nodes] = self._start(nodes) if self._may_gain(nodes) else (0.0, ())
            return starts[nodes][0]

        for depth in range(DEPTH if few else 1):
            ranked = likely_parts(problem.fleet, within, started, combined=few and depth == 0)
            # Parts with the same start differ by nodes of no use: of these the smallest.
            first = {about(worth): (words + where, nodes) for worth, words, nodes in reversed(ranked) if worth > 0}
            likely = [first[worth] for worth in sorted(first, reverse=True) if first[worth][1] not in self._searched]
            self._search_best([(words, nodes, starts[nodes][1]) for words, nodes in likely], few=few, depth=depth)
            if self._best_of == within:
                break
            within, where = self._best_of, f" of {self._best_words}"
        self._search_each_of_few_nodes()

    def _search_each_of_few_nodes(self) -> None:
        """Offer what a search of each part of up to EXHAUSTIVE_NODES nodes finds."""
        for words, nodes in parts_of(self._problem.fleet, self._problem.able):
            if len(nodes) <= EXHAUSTIVE_NODES and nodes not in self._searched and self._may_gain(nodes):
                self._search(words, nodes, ())

    def _search_best(self, likely: Sequence[tuple[str, Group, Clusters]], *, few: bool, depth: int) -> None:
        """Offer what climbing from the starts of the likeliest parts finds, and what a search of the best of them does.
        `likely`: (words, nodes, start) of parts, the likeliest first.
        """
        found, most = [], (GLIMPSED_WITHIN if depth else GLIMPSED) if few else CLIMBED
        for number, (words, nodes, start) in enumerate(likely[:most]):
            better, _ = self._plans_of(nodes).improved(start, GLIMPSES if few else 0, self._problem.seed + number)
            found.append((self._offer("parts", better, words, nodes), words, nodes, better))
        for worth, words, nodes, clusters in sorted(found, key=lambda one: -one[0])[: 1 if depth else PARTS_SEARCHED]:
            if few or (len(nodes) <= FEW_NODES and worth >= NEARLY * self._best_objective):
                self._search(words, nodes, clusters)

    def _may_gain(self, nodes: Group) -> bool:
        """Say whether these nodes by themselves may be worth more than the best plan."""
        able = len(self._problem.able)
        if not self._rules.pinned <= set(nodes) or (able > MOST_IN_PARTS and len(nodes) > LARGEST_PART * able):
            return False
        return best_possible(self._problem.fleet, self._spans, nodes, self._problem.least) > self._best_objective

    def _search(self, words: str, nodes: Group, start: Clusters) -> None:
        """Offer what a search of a part of the fleet by itself finds."""
        self._searched.add(nodes)
        part = self._problem.of_part(nodes)
        memory_fit = MemoryFit(part.fleet, self._spans, part.least)
        if len(nodes) <= EXHAUSTIVE_NODES:
            divisions = Divisions(part, Assembler(part.fleet, self._spans, part.least))
            if divisions.most() <= self._best_objective:
                return
        search = Search(part, self._spans, memory_fit, unheard, is_part=True, above=self._best_objective)
        found = search.best(*((start,) if start else ()))
        if found is not None:
            self._offer("parts", found.clusters, words, nodes)

    def _search_core(self) -> None:
        """Where the best plan of many nodes runs few, offer what parts of these and the fastest others are worth."""
        problem, found = self._problem, self.found
        if found is None or self._is_part or len(problem.able) <= MOST_IN_PARTS:
            return
        run = run_by(problem, found.clusters)
        nodes = core_of(problem.fleet, problem.able, run)
        most = best_possible(problem.fleet, self._spans, nodes, problem.least)
        if 2 * len(run) > MOST_IN_PARTS or most <= found.objective:
            return
        part = problem.of_part(nodes)
        search = Search(part, self._spans, MemoryFit(part.fleet, self._spans, part.least), unheard)
        if better := search.further(found.clusters):
            self._offer("core", better.clusters, f"of {format_count(len(nodes), 'node')}", nodes)

    def _start(self, nodes: Group) -> tuple[float, Clusters]:
        """Return (rough worth, clusters) of these nodes' best start: a cover, stages of neighbours, or groups."""
        counts, names = list(counts_to_try(len(nodes), self._problem.least)), self._problem.fleet.names
        found: list[Clusters] = []
        if len(self._problem.able) <= MOST_IN_PARTS:
            found += covering(self._context, self._plans_of(nodes), nodes, counts)
            found += by_neighbours(self._context, nodes, counts, self._is_hopeful)
        made = self._assembler.clusters if self._rules.are_any else self._assembler.along_tours  # which heeds no pins
        for groups in self._likely(self._context.ranked(nodes, iter(counts[::2]), 1), FEW_OF_PARTS)[:1]:
            clusters = made([tuple(names[i] for i in group) for group in groups])
            found += [clusters] if clusters is not None and self._is_allowed(groups) else []
        worths = [self._worths.of(clusters, roughly=True) for clusters in found]
        return max(zip(worths, found, strict=True), key=lambda one: one[0], default=(0.0, ()))

    def _across(self) -> float:
        """Offer plans whose stages are groups of neighbours, and covers; return the most that one is worth."""
        able, least = self._problem.able, self._rules.min_clusters
        every = counts_to_try(len(able), self._problem.least)
        few = len(able) <= FEW_NODES  # of many clusters neighbouring numbers differ little
        counts = [k for i, k in enumerate(every) if k >= least and (few or k <= EVERY_K or i % 2)]
        plans = by_neighbours(self._context, able, counts, self._is_hopeful)
        across = self._offer_likely("stages of neighbours", plans)
        if len(able) > LARGEST:
            return across
        covers = filter(self._is_hopeful, covering(self._context, self._plans_of(able), able, counts))
        return max(across, self._offer_likely("covers", covers))

    def _is_hopeful(self, clusters: Clusters) -> bool:
        """Say whether these clusters could be worth HOPEFUL of the best plan if nothing were averaged."""
        return self._worths.at_most(clusters) >= HOPEFUL * self._best_objective

    def _offer_likely(self, phase: str, plans: Iterable[Clusters]) -> float:
        """Offer those that are worth most roughly, and return the most that one is worth."""
        roughly = ((self._worths.of(clusters, roughly=True), clusters) for clusters in plans)
        different = {about(worth): (worth, clusters) for worth, clusters in roughly}
        best = sorted(different.values(), key=lambda one: -one[0])[:ACROSS]
        return max((self._offer(phase, clusters) for _, clusters in best), default=0.0)

    def _climb(self) -> None:
        """Climb from the best plans, and then from those of the fleet's core."""
        if self.found is not None:
            self._starts.remember(Start(self._best_objective, self.found.clusters, self._problem.able))
        given = self._problem, self._worths, self._plans_of, self._starts
        if better := climbed(*given, is_part=self._is_part):
            self._offer("whole plans", better, f"{format_count(self._worths.asked, 'plan')} compared")
        self._search_core()

    def _plans_of(self, nodes: Group) -> WholePlans:
        """Return what climbs with these nodes only: a part's others would mostly be drawn for nothing."""
        problem = self._problem
        if nodes not in self._climbers:
            names = [problem.fleet.names[i] for i in nodes]
            self._climbers[nodes] = WholePlans(
                problem.fleet, self._spans, self._worths, names, problem.least, few=self._context.fine
            )
        return self._climbers[nodes]

    def _improve(self, groups: tuple[Group, ...], conditions: AveragingLimits) -> None:
        for _ in range(ROUNDS):
            groups, words = self._context.searched(self._problem.able, groups, conditions, Totals(), ESTIMATES_PER_NODE)
            before = self._best_objective
            found = self._work_out("local search", groups, words)
            if found is None or found.objective <= before * (1 + 1e-6):
                return
            conditions = averaging_limits_of(found)

    def _all_partitions(self) -> None:
        rate = 0.0 if self.found is None else self.found.forecast.prediction.samples_per_s
        divisions = Divisions(self._problem, self._assembler)
        for groups in divisions.best(rate, lambda: max(self._best_objective, self._above)):
            self._work_out("all partitions", groups, format_count(len(groups), "cluster"))
        climber, least = self._plans_of(self._problem.able), max(self._best_objective, self._above)
        climbed_to = list(climbed_divisions(self._problem, divisions, self._assembler, climber, least))
        for clusters in climbed_to:
            self._offer("whole plans", clusters)
        if self.found is None or self._is_part:
            return
        if climbed_to:
            self._search_each_of_few_nodes()
            self._starts.remember(Start(self._best_objective, self.found.clusters, self._problem.able))
            further = climbed_further(self._problem, self._worths, self._plans_of, self._starts)
            self._offer("whole plans", further, f"{format_count(self._worths.asked, 'plan')} compared")
        else:
            self._offer("small moves", with_small_moves(climber, self._worths, self.found.clusters, MOVES))

    def _work_out(self, phase: str, groups: Sequence[Group], words: str, expected: float = 0.0) -> Candidate | None:
        """`expected`: samples/s of the fleet, as far as no plan has told them yet."""
        names = self._problem.fleet.names
        named = [tuple(names[i] for i in group) for group in groups]
        rate = expected if self.found is None else self.found.forecast.prediction.samples_per_s
        found = self._assembler.candidate(named, rate) if named and self._is_allowed(groups) else None
        before = self.found
        if found is not None and found.objective > self._best_objective * (1 + 1e-9):
            self.found = found
        self._report(phase, words, before, found)
        return found

    def _report(self, phase: str, words: str, before: Candidate | None, found: Candidate | None) -> None:
        said = f"{words}: {outcome(before, found)}" if words else outcome(before, found)
        worth = self._best_objective
        self._tell(Step(phase, said, worth, worth - (0.0 if before is None else before.objective)))

    def _is_allowed(self, groups: Sequence[Group]) -> bool:
        rules, runs = self._rules, {node for group in groups for node in group}
        return len(groups) >= rules.min_clusters and rules.pinned <= runs and all(map(rules.allows, groups))

    @property
    def _best_objective(self) -> float:
        return 0.0 if self.found is None else self.found.objective
