"""The order of a cluster's nodes along its pipeline.

Decides which nodes run a stage and in what order. Up to EXACT_NODES nodes: exactly, by dynamic programming
over the sets of nodes used so far (as Held and Karp do for tours), which tries every subset and every order.
Beyond: heuristic, the best of a few orders (nearest neighbour by hop cost from several starts, by speed, by
memory), each with optimal cuts. Knows tables of numbers only.
"""

import itertools

import numpy as np

from cluster_planner.cuts import Solution, Tables, best_cuts
from cluster_planner.spans import Floats

EXACT_NODES = 6

SHORTLIST = 2
"""How many heuristic orders are looked into further than their bottleneck."""


def best_pipeline(
    tables: Tables, combine: np.ufunc, least: int, orders: tuple[tuple[int, ...], ...], required: int | None = None
) -> Solution | None:
    """The cheapest pipeline of `least` or more stages; None where none is possible.

    `orders` are what is tried beyond EXACT_NODES nodes. `required`: the index of a node that must run a stage
    (exact search only).
    """
    if len(tables.stage) <= EXACT_NODES:
        return _over_subsets(tables, combine, least, required)
    found = [best_cuts(tables, order, combine, least) for order in orders]
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


def shortlist(tables: Tables, orders: tuple[tuple[int, ...], ...], least: int) -> tuple[tuple[int, ...], ...]:
    """The SHORTLIST orders that have the least bottleneck with optimal cuts; all of them where none is
    possible.
    """
    costs = [best_cuts(tables, order, np.maximum, least) for order in orders]
    ranked = sorted((found.cost, i) for i, found in enumerate(costs) if found is not None)
    return tuple(orders[i] for _, i in ranked[:SHORTLIST]) or orders


def _nearest_neighbours(distance: Floats, start: int) -> tuple[int, ...]:
    order, left = [start], [i for i in range(len(distance)) if i != start]
    while left:
        here = order[-1]
        order.append(min(left, key=lambda i: (distance[here, i], i)))
        left.remove(order[-1])
    return tuple(order)


def _over_subsets(tables: Tables, combine: np.ufunc, least: int, required: int | None) -> Solution | None:
    nodes, positions = tables.stage.shape[:2]
    last, cuts = positions - 1, np.arange(positions)
    best = np.full((1 << nodes, nodes, positions), np.inf)
    came_from = np.full((1 << nodes, nodes, positions, 2), -1, dtype=np.int64)
    answer, answer_cost = (0, 0), np.inf
    for used in range(1, 1 << nodes):
        members = [i for i in range(nodes) if used >> i & 1]
        for j in members:
            before = used & ~(1 << j)
            if not before:
                best[used, j] = tables.stage[j, 0]
            else:
                others = [i for i in members if i != j]
                reach = combine(best[before, others], tables.hop[others, j])
                previous = reach.argmin(axis=0)
                total = combine(reach[previous, cuts][:, None], tables.stage[j])
                start = total.argmin(axis=0)
                best[used, j] = total[start, cuts]
                came_from[used, j, :, 0] = np.asarray(others)[previous[start]]
                came_from[used, j, :, 1] = start
            enough = len(members) >= least and (required is None or used >> required & 1)
            if enough and best[used, j, last] < answer_cost:
                answer, answer_cost = (used, j), best[used, j, last]
    if not np.isfinite(answer_cost):
        return None
    used, j = answer
    end = last
    steps: list[tuple[int, int, int]] = []
    while True:
        i, start = (int(x) for x in came_from[used, j, end])
        steps.append((j, max(start, 0), end))
        if i < 0:
            return Solution(float(answer_cost), tuple(reversed(steps)))
        used, j, end = used & ~(1 << j), i, start
