"""The divisions of few nodes into groups whose values have the largest sums, by dynamic programming over sets.

Every set of nodes that the groups so far have used up keeps its KEPT best divisions, so that all divisions are compared
without being listed. Takes time by 3 to the number of nodes. What a group is worth takes long to find, and what it is
worth at most does not (pipeline/value_bounds.py). So divisions are compared by the latter first, the groups of the
best ones are worked out, and all are compared again, until those of the best are all worked out. In: nodes, a number of
groups, what a group is worth. Out: divisions.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from cluster_planner.pipeline.value_bounds import most_of_subsets
from cluster_planner.predict.objective import averaging_factor, averaging_per_s
from cluster_planner.search.candidates import Assembler
from cluster_planner.search.estimates import Group
from cluster_planner.search.search_context import SearchProblem

KEPT = 3
"""The number of best divisions of each set that are kept."""


def best_partitions(
    nodes: Sequence[int],
    clusters: int,
    least: int,
    value_of: Callable[[Group], float],
    optional: Collection[int] = (),
    *,
    at_most: Callable[[Group], float] | None = None,
) -> tuple[tuple[Group, ...], ...]:
    """Return up to KEPT divisions of all nodes, but for some that are `optional`, into so many groups of `least` or
    more, best first; groups worth 0 are none. `at_most`: no group is worth more than that; without it all are asked
    for what they are worth.
    """
    everyone, most = (1 << len(nodes)) - 1, len(nodes) - least * (clusters - 1)
    groups = {
        bits: tuple(node for i, node in enumerate(nodes) if bits >> i & 1)
        for bits in range(1, everyone + 1)
        if least <= bits.bit_count() <= most  # the others need their nodes, too
    }
    bounds = {bits: (value_of if at_most is None else at_most)(group) for bits, group in groups.items()}
    known = set(groups) if at_most is None else set[int]()
    left_out = sum(1 << i for i, node in enumerate(nodes) if node in optional)
    while True:
        values = {bits: value for bits, value in bounds.items() if value > 0}
        best = _best_sums(values, everyone, clusters, left_out)
        unknown = {bits for way in best for bits in way} - known
        if not unknown:
            return tuple(tuple(groups[bits] for bits in way) for way in best)
        known |= unknown
        bounds |= {bits: value_of(groups[bits]) for bits in unknown}


def _best_sums(values: Mapping[int, float], everyone: int, clusters: int, left_out: int) -> list[tuple[int, ...]]:
    """Return the KEPT ways to make up `everyone`, but for some of `left_out`, of so many sets with the largest sums."""
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
    return [way for _, way in best.get(everyone, [])]


class Divisions:
    """The divisions of a problem's few nodes into pipelines. Where there are rules, nodes that need not run are left
    out of some.
    """

    def __init__(self, problem: SearchProblem, assembler: Assembler) -> None:
        self._problem, self._assembler, rules = problem, assembler, problem.fleet.rules
        self._optional = set(problem.able) - rules.pinned if rules.are_any else set()
        names, bit = problem.fleet.names, {node: 1 << at for at, node in enumerate(problem.able)}
        bounds = most_of_subsets(problem.fleet, assembler.spans, [names[i] for i in problem.able], problem.least)

        def at_most(group: Group) -> float:
            return float(bounds[sum(bit[node] for node in group)]) if rules.allows(group) else 0.0

        self._at_most = at_most

    def most(self) -> float:
        """Return what any plan is worth at most."""
        return max((most for _, most in self._counts()), default=0.0)

    def best(self, samples_per_s: float, above: Callable[[], float]) -> Iterator[tuple[Group, ...]]:
        """Yield the best divisions for each number of clusters with which a plan may be worth more than `above`, which
        is asked for each number. `samples_per_s`: what the fleet makes, so averaging loads links.
        """
        names, work = self._problem.fleet.names, self._problem.work
        for clusters, most in self._counts():
            if most <= above():
                continue
            load = float(f"{averaging_per_s(clusters, samples_per_s, work):.2g}")

            def value_of(group: Group, load: float = load) -> float:
                found = self._assembler.pipeline(tuple(names[i] for i in group), load)
                return 0.0 if found is None else found.value

            yield from self._partitions(clusters, value_of, at_most=self._at_most)

    def _counts(self) -> Iterator[tuple[int, float]]:
        """Yield each number of clusters, and what a plan with so many is worth at most."""
        for clusters in range(1, len(self._problem.able) // self._problem.least + 1):
            for groups in self._partitions(clusters, self._at_most)[:1]:
                yield clusters, averaging_factor(clusters, self._problem.work) * sum(map(self._at_most, groups))

    def _partitions(
        self, clusters: int, value_of: Callable[[Group], float], at_most: Callable[[Group], float] | None = None
    ) -> tuple[tuple[Group, ...], ...]:
        given = self._problem.able, clusters, self._problem.least
        return best_partitions(*given, value_of, self._optional, at_most=at_most)
