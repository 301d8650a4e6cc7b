"""Cuts for a given node order: dynamic programming over cut positions.

Decides which spans the nodes of a fixed order get, and which nodes are passed over, so that the worst of all
stage and hop costs (combine = np.maximum), or their sum (np.add), is least. Optimal for that order. Knows
tables of numbers only.

    best[j][c] = min over b < c of combine(min over i before j of combine(best[i][b], hop[i, j, b]), stage[j,
    b, c])

`best[j][c]` is the least cost of units up to position c with node j last; the number of stages so far is
carried along up to the least number asked for, or to the last stage that a node is pinned to. Time
O(nodes · positions · (nodes + positions)).
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from cluster_planner.inputs.spans import Floats


@dataclass(frozen=True)
class Tables:
    """Costs of one cluster's nodes. `stage[j, b, c]`: node j with positions b to c; `hop[i, j, b]`: a cut at
    b from i to j.

    Shapes (nodes, positions, positions) and (nodes, nodes, positions); infinite where impossible.
    """

    stage: Floats
    hop: Floats

    def most(self, steps: Sequence[tuple[int, int, int]]) -> float:
        """The largest cost in a pipeline of these steps (see Solution)."""
        stages = [self.stage[step] for step in steps]
        hops = [self.hop[a, b, cut] for (a, _, cut), (b, _, _) in itertools.pairwise(steps)]
        return float(max((*stages, *hops)))


@dataclass(frozen=True)
class Pinned:
    """Nodes, by index, that have to run a stage, and those of them that have to run a certain one."""

    required: frozenset[int] = frozenset()
    stage_of: Mapping[int, int] = field(default_factory=dict)

    def allows(self, node: int, stage: int) -> bool:
        """Whether that node may run that stage."""
        return self.stage_of.get(node, stage) == stage and (node in self.stage_of or stage not in self._taken)

    @cached_property
    def _taken(self) -> frozenset[int]:
        return frozenset(self.stage_of.values())


ANYONE = Pinned()


@dataclass(frozen=True)
class Solution:
    """`steps`: (node index, from position index, to position index) of each stage, in order."""

    cost: float
    steps: tuple[tuple[int, int, int], ...]


def best_cuts(
    tables: Tables, order: tuple[int, ...], combine: np.ufunc, least: int, pinned: Pinned = ANYONE
) -> Solution | None:
    """The cheapest pipeline of `least` or more stages whose nodes appear in this order; None where there is
    none.
    """
    most = max((least, *(stage + 2 for stage in pinned.stage_of.values())))  # counted exactly below it
    nodes, last = len(order), tables.stage.shape[1] - 1
    cuts = np.arange(last + 1)
    best = np.full((most + 1, nodes, last + 1), np.inf)
    came_count = np.full(best.shape, -1, dtype=np.int64)
    came_node, came_cut = came_count.copy(), came_count.copy()
    since, begun = 0, False  # who has to run a stage is not passed over
    for j, node in enumerate(order):
        if not begun and pinned.allows(node, 0):
            best[1, j] = tables.stage[node, 0]
        for count in range(1, most + 1) if j else ():
            if not pinned.allows(node, min(count, most - 1)):
                continue
            reach = combine(best[count, since:j], tables.hop[list(order[since:j]), node])
            before = reach.argmin(axis=0)
            total = combine(reach[before, cuts][:, None], tables.stage[node])
            start = total.argmin(axis=0)
            cost = total[start, cuts]
            reached = min(count + 1, most)
            better = cost < best[reached, j]
            best[reached, j, better] = cost[better]
            came_count[reached, j, better] = count
            came_node[reached, j, better] = since + before[start[better]]
            came_cut[reached, j, better] = start[better]
        if node in pinned.required:
            best[:, :j] = np.where(np.arange(last + 1) < last, best[:, :j], np.inf)
            since, begun = j, True
    count, j = (int(at) for at in np.unravel_index(best[least:, :, last].argmin(), best[least:, :, last].shape))
    count += least
    cost = float(best[count, j, last])
    if not np.isfinite(cost):
        return None
    steps: list[tuple[int, int, int]] = []
    end = last
    while True:
        previous, i, start = (int(came[count, j, end]) for came in (came_count, came_node, came_cut))
        if previous < 0:
            steps.append((order[j], 0, end))
            return Solution(cost, tuple(reversed(steps)))
        steps.append((order[j], start, end))
        count, j, end = previous, i, start
