"""Cuts for a given node order: dynamic programming over cut positions.

Decides which spans the nodes of a fixed order get, and which nodes are passed over, so that the worst of all
stage and hop costs (combine = np.maximum), or their sum (np.add), is least. Optimal for that order. Knows
tables of numbers only.

    best[j][c] = min over b < c of combine(min over i before j of combine(best[i][b], hop[i, j, b]), stage[j,
    b, c])

`best[j][c]` is the least cost of units up to position c with node j last; the number of stages so far is
carried along up to the least number asked for. Time O(nodes · positions · (nodes + positions)).
"""

from dataclasses import dataclass

import numpy as np

from cluster_planner.spans import Floats


@dataclass(frozen=True)
class Tables:
    """Costs of one cluster's nodes. `stage[j, b, c]`: node j with positions b to c; `hop[i, j, b]`: a cut at
    b from i to j.

    Shapes (nodes, positions, positions) and (nodes, nodes, positions); infinite where impossible.
    """

    stage: Floats
    hop: Floats


@dataclass(frozen=True)
class Solution:
    """`steps`: (node index, from position index, to position index) of each stage, in order."""

    cost: float
    steps: tuple[tuple[int, int, int], ...]


def best_cuts(tables: Tables, order: tuple[int, ...], combine: np.ufunc, least: int) -> Solution | None:
    """The cheapest pipeline of `least` or more stages whose nodes appear in this order; None where there is
    none.
    """
    nodes, last = len(order), tables.stage.shape[1] - 1
    cuts = np.arange(last + 1)
    best = np.full((least + 1, nodes, last + 1), np.inf)
    came_count = np.full(best.shape, -1, dtype=np.int64)
    came_node, came_cut = came_count.copy(), came_count.copy()
    for j, node in enumerate(order):
        best[1, j] = tables.stage[node, 0]
        for count in range(1, least + 1) if j else ():
            reach = combine(best[count, :j], tables.hop[list(order[:j]), node])
            before = reach.argmin(axis=0)
            total = combine(reach[before, cuts][:, None], tables.stage[node])
            start = total.argmin(axis=0)
            cost = total[start, cuts]
            reached = min(count + 1, least)
            better = cost < best[reached, j]
            best[reached, j, better] = cost[better]
            came_count[reached, j, better] = count
            came_node[reached, j, better] = before[start[better]]
            came_cut[reached, j, better] = start[better]
    j = int(best[least, :, last].argmin())
    cost = float(best[least, j, last])
    if not np.isfinite(cost):
        return None
    steps: list[tuple[int, int, int]] = []
    count, end = least, last
    while True:
        previous, i, start = (int(came[count, j, end]) for came in (came_count, came_node, came_cut))
        if previous < 0:
            steps.append((order[j], 0, end))
            return Solution(cost, tuple(reversed(steps)))
        steps.append((order[j], start, end))
        count, j, end = previous, i, start
