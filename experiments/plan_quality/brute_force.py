"""The best plan of a small fleet, by looking at all of them: the oracle that the planner is compared with.

Decides by branch and bound, exactly: every set of disjoint groups, every order of every group, every cut, and which
stages recompute where the job leaves that open. A pipeline
without averaging is never slower than with it, so the sum of such values bounds what pipelines can be worth together;
only what could beat the best so far is predicted as a whole. Windows follow from the pipelines by the planner's rule,
and rings are exact for so few members. Pure.
"""

import heapq
import itertools
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cluster_planner import (
    Cluster,
    Fleet,
    ModelCosts,
    SpanCosts,
    Stage,
    Workload,
    averaging_factor,
)
from cluster_planner.pipeline.best_pipeline import Pipeline, timed
from cluster_planner.pipeline.memory_fit import recomputing
from cluster_planner.predict.plan_worths import PlanWorths

MOST_PREDICTED = 300_000
"""Plans predicted for one fleet, at most; beyond, the answer is not the proven best."""

LOOSE = 0.9
"""A plan is predicted to the end where it may be worth more than this part of the best: short of that, `PlanWorths.of`
takes a plan for a worse one that is worth up to 4 % more.
"""


@dataclass(frozen=True)
class Best:
    """`proven`: whether every plan was looked at or could not be better. `predicted`: how many were looked at whole."""

    objective: float
    proven: bool
    predicted: int


def best_of_all(fleet: Fleet, costs: ModelCosts, work: Workload, least: int, known: float = 0.0) -> Best:
    """The highest objective that any plan with `least` or more stages in each cluster has. `known`: one that is."""
    spans = SpanCosts(costs, work)
    pipelines = {
        group: sorted(_pipelines(fleet, spans, group), key=lambda one: -one.value)
        for size in range(least, len(fleet.nodes) + 1)
        for group in itertools.combinations(fleet.names, size)
    }
    able = {group: found for group, found in pipelines.items() if found}
    worths, best, looked = PlanWorths(fleet, spans), known, 0
    for clusters in range(1, len(fleet.nodes) // least + 1):
        factor = averaging_factor(clusters, work)
        for groups in sorted(_disjoint(list(able), clusters), key=lambda gs: -sum(able[g][0].value for g in gs)):
            for chosen in _promising([able[group] for group in groups]):
                bound = factor * sum(one.value for one in chosen)
                if bound <= best * (1 + 1e-9):
                    break
                looked += 1
                if looked > MOST_PREDICTED:
                    return Best(best, proven=False, predicted=looked)
                plan = [Cluster("", one.window, one.stages) for one in chosen]
                best = max(best, worths.of(plan, above=LOOSE * best))
    return Best(best, proven=True, predicted=looked)


def _pipelines(fleet: Fleet, spans: SpanCosts, group: Sequence[str]) -> Iterator[Pipeline]:
    for inner in itertools.combinations(range(1, spans.count), len(group) - 1):
        cuts = list(itertools.pairwise((0, *inner, spans.count)))
        for order in itertools.permutations(group):
            plain = tuple(Stage(name, cut) for name, cut in zip(order, cuts, strict=True))
            for stages in _ways(fleet, spans, plain):
                yield timed(fleet, spans, stages, 0.0)


def _ways(fleet: Fleet, spans: SpanCosts, plain: Sequence[Stage]) -> Iterator[tuple[Stage, ...]]:
    """Yield these stages with every choice of those that recompute that can be the best: recomputing costs time, so
    with each window only those do for which memory is short otherwise.
    """
    windows = {1}
    if spans.workload.activation_checkpointing == "auto" and not spans.workload.is_synchronous:
        for i, stage in enumerate(plain):
            room, place = fleet.node(stage.node).memory_bytes, (i, len(plain))
            every = range(1, spans.workload.largest_window + 1)
            fits = bisect_left(every, True, key=lambda w: spans.stage_memory_bytes(*stage.units, place, w) > room)
            windows |= {fits + 1} if fits < len(every) else set()
    ways = (recomputing(fleet, spans, plain, window) for window in sorted(windows))
    yield from dict.fromkeys(way for way in ways if way is not None)


def _disjoint(groups: Sequence[tuple[str, ...]], count: int) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Yield every set of so many of these groups that have no node in common. A set is built group by group, each after
    the one before, since most combinations of groups share nodes: of seven nodes 4,139 sets do not, of any number.
    """
    if count == 0:
        yield ()
        return
    for i, group in enumerate(groups):
        later = [one for one in groups[i + 1 :] if not set(one) & set(group)]
        yield from ((group, *others) for others in _disjoint(later, count - 1))


def _promising(several: Sequence[Sequence[Pipeline]]) -> Iterator[tuple[Pipeline, ...]]:
    """One of each, by falling sum of values. The caller stops when a sum is too low."""

    def entry(at: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        return -sum(one[i].value for one, i in zip(several, at, strict=True)), at

    start = (0,) * len(several)
    heap, seen = [entry(start)], {start}
    while heap:
        _, at = heapq.heappop(heap)
        yield tuple(one[i] for one, i in zip(several, at, strict=True))
        for place in range(len(at)):
            onward = (*at[:place], at[place] + 1, *at[place + 1 :])
            if onward[place] < len(several[place]) and onward not in seen:
                seen.add(onward)
                heapq.heappush(heap, entry(onward))
