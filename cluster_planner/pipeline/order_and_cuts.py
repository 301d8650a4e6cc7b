"""The order of a cluster's nodes along its pipeline.

Decides which nodes run a stage and in what order. Exact for up to EXACT_NODES nodes, as long as the tables stay small
(`is_exact`): dynamic programming over the sets of nodes used so far, as Held and Karp do for tours, which tries every
subset and every order; all sets of one size at once. Beyond: heuristic, the best of a few orders (nearest neighbour by
hop cost from several starts, by speed, by memory), each with optimal cuts. Knows tables of numbers only.
"""

import itertools
from functools import cache

import numpy as np
from numpy.typing import NDArray

from cluster_planner.inputs.spans import Floats
from cluster_planner.pipeline.cuts import ANYONE, Pinned, Solution, Tables, best_cuts

EXACT_NODES = 8
EXACT_WORK = 7_000_000
"""The exact search makes 2^nodes · nodes · positions² steps, at most so many."""

SHORTLIST = 2
"""How many heuristic orders are looked into further than their bottleneck."""


def is_exact(nodes: int, positions: int) -> bool:
    """Whether every subset and order of so many nodes is tried, with so many cut positions."""
    return nodes <= EXACT_NODES and (1 << nodes) * nodes * positions**2 <= EXACT_WORK


def best_pipeline(
    tables: Tables, combine: np.ufunc, least: int, orders: tuple[tuple[int, ...], ...], pinned: Pinned = ANYONE
) -> Solution | None:
    """The cheapest pipeline of `least` or more stages; None where none is possible.

    `orders` are what is tried where the search is not exact.
    """
    if is_exact(*tables.stage.shape[:2]):
        return _over_subsets(tables, combine, least, pinned)
    found = [best_cuts(tables, order, combine, least, pinned) for order in orders]
    return min((s for s in found if s is not None), key=lambda s: s.cost, default=None)


def candidate_orders(tables: Tables, speeds: Floats, memories: Floats) -> tuple[tuple[int, ...], ...]:
    """Orders worth trying: nearest-neighbour tours from distinct starts, by speed, by memory; each also
    reversed.
    """
    nodes = len(speeds)
    by_speed = tuple(int(i) for i in np.argsort(-speeds, kind="stable"))
    by_memory = tuple(int(i) for i in np.argsort(-memories, kind="stable"))
    distance = tables.hop.mean(axis=2)
    starts = dict.fromkeys((0, by_speed[0], by_speed[-1], by_memory[0], nodes // 2))
    orders = [_nearest_neighbours(distance, start) for start in starts]
    orders += [by_speed, by_memory]
    return tuple(dict.fromkeys(itertools.chain.from_iterable((order, order[::-1]) for order in orders)))


def shortlist(
    tables: Tables, orders: tuple[tuple[int, ...], ...], least: int, pinned: Pinned = ANYONE
) -> tuple[tuple[int, ...], ...]:
    """The SHORTLIST orders that have the least bottleneck with optimal cuts; all of them where none is
    possible.
    """
    costs = [best_cuts(tables, order, np.maximum, least, pinned) for order in orders]
    ranked = sorted((found.cost, i) for i, found in enumerate(costs) if found is not None)
    return tuple(orders[i] for _, i in ranked[:SHORTLIST]) or orders


def _nearest_neighbours(distance: Floats, start: int) -> tuple[int, ...]:
    order, left = [start], [i for i in range(len(distance)) if i != start]
    while left:
        here = order[-1]
        order.append(min(left, key=lambda i: (distance[here, i], i)))
        left.remove(order[-1])
    return tuple(order)


def _over_subsets(tables: Tables, combine: np.ufunc, least: int, pinned: Pinned) -> Solution | None:
    nodes, positions = tables.stage.shape[:2]
    best = np.full((positions, nodes, 1 << nodes), np.inf)  # sets last: numpy's innermost loops are long then
    hops = tables.hop.transpose(2, 0, 1).copy()
    for j in range(nodes):
        if pinned.allows(j, 0):
            best[:, j, 1 << j] = tables.stage[j, 0]
    needed = sum(1 << j for j in pinned.required)
    answer, answer_cost = (0, 0), np.inf
    for size in range(1, nodes + 1):
        used, newest, others = sets_of(nodes, size)
        if size > 1:
            before, reached_by = used ^ (1 << newest), others.T
            reach = combine(best[:, reached_by, before], hops[:, reached_by, newest]).min(axis=1)
            for j in (j for j in range(nodes) if pinned.allows(j, size - 1)):
                mine = newest == j
                best[:, j, used[mine]] = combine(reach[:, None, mine], tables.stage[j, :, :, None]).min(axis=0)
        if size < least:
            continue
        ends = best[-1, newest, used]
        if needed:
            ends = np.where(used & needed == needed, ends, np.inf)
        at = int(ends.argmin())
        if ends[at] < answer_cost:
            answer, answer_cost = (int(used[at]), int(newest[at])), float(ends[at])
    if not np.isfinite(answer_cost):
        return None
    return Solution(answer_cost, _walked_back(tables, combine, best.transpose(2, 1, 0), *answer))


def _walked_back(
    tables: Tables, combine: np.ufunc, best: Floats, used: int, j: int
) -> tuple[tuple[int, int, int], ...]:
    """The steps that made `best[used, j, last]`, by deciding each of them once more."""
    end = best.shape[2] - 1
    steps: list[tuple[int, int, int]] = []
    while before := used & ~(1 << j):
        others = [i for i in range(best.shape[1]) if before >> i & 1]
        reach = combine(best[before, others], tables.hop[others, j])
        start = int(combine(reach.min(axis=0), tables.stage[j, :, end]).argmin())
        steps.append((j, start, end))
        used, j, end = before, others[int(reach[:, start].argmin())], start
    return (j, 0, end), *reversed(steps)


@cache
def sets_of(nodes: int, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """All sets of `size` nodes, each with every choice of its newest: the set as bits, the newest, the others."""
    rows = [
        (sum(1 << i for i in members), j, [i for i in members if i != j])
        for members in itertools.combinations(range(nodes), size)
        for j in members
    ]
    used, newest, others = zip(*rows, strict=True)
    return np.array(used), np.array(newest), np.array(others, dtype=np.int64).reshape(len(rows), size - 1)
