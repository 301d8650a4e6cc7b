"""The divisions of few nodes into groups whose values have the largest sums, by dynamic programming over sets.

Every set of nodes that the groups so far have used up keeps its KEPT best divisions, so that all divisions are compared
without being listed. Takes time by 3 to the number of nodes. In: nodes, a number of groups, what a group is worth. Out:
divisions.
"""

from collections.abc import Callable, Collection, Iterator, Sequence

from cluster_planner.predict.objective import averaging_per_s
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
) -> tuple[tuple[Group, ...], ...]:
    """Return up to KEPT divisions of all nodes, but for some that are `optional`, into so many groups of `least` or
    more, best first; groups worth 0 are none.
    """
    everyone, most = (1 << len(nodes)) - 1, len(nodes) - least * (clusters - 1)
    groups = {
        bits: tuple(node for i, node in enumerate(nodes) if bits >> i & 1)
        for bits in range(1, everyone + 1)
        if least <= bits.bit_count() <= most  # the others need their nodes, too
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


def divisions(problem: SearchProblem, assembler: Assembler, samples_per_s: float) -> Iterator[tuple[Group, ...]]:
    """Yield the best divisions of a problem's nodes into pipelines, for each number of clusters. Where there are rules,
    nodes that need not run are left out of some. `samples_per_s`: what the fleet makes, so averaging loads links.
    """
    names, rules = problem.fleet.names, problem.fleet.rules
    optional = set(problem.able) - rules.pinned if rules.are_any else set()
    for clusters in range(1, len(problem.able) // problem.least + 1):
        load = float(f"{averaging_per_s(clusters, samples_per_s, problem.work):.2g}")

        def value_of(group: Group, load: float = load) -> float:
            found = assembler.pipeline(tuple(names[i] for i in group), load) if rules.allows(group) else None
            return 0.0 if found is None else found.value

        yield from best_partitions(problem.able, clusters, problem.least, value_of, optional)
