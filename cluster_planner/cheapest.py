"""The cheapest pipeline of each of many groups at once, as arrays: in a given order, or over all subsets and orders.

Decides what order.py decides for one group. Knows costs only: of a stage by its node and cuts, of a hop by its nodes
and cut, and how they combine (the largest of them, or their sum).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cluster_planner.order import sets_of
from cluster_planner.spans import Floats


@dataclass(frozen=True)
class Costs:
    """The least cost in each row, and the nodes that run stages then, as bits; −1 for all."""

    cost: Floats
    used: NDArray[np.int64]


Finder = Callable[[Floats, Floats, np.ufunc], Costs]


def chains(distance: Floats, alone_s: Floats) -> NDArray[np.int64]:
    """Each row's nodes in the order of a nearest-neighbour tour that starts with its slowest."""
    rows, nodes = alone_s.shape
    every = np.arange(rows)
    chain = np.empty((rows, nodes), dtype=np.int64)
    chain[:, 0] = alone_s.argmax(axis=1)
    left = np.ones((rows, nodes), dtype=bool)
    for step in range(1, nodes):
        left[every, chain[:, step - 1]] = False
        chain[:, step] = np.where(left, distance[every, chain[:, step - 1]], np.inf).argmin(axis=1)
    return chain


def in_order(stage: Floats, hop: Floats, combine: np.ufunc) -> Costs:
    """Of pipelines of all nodes in their order: `stage` (rows, nodes, P, P), `hop` (rows, nodes − 1, P) to the next."""
    best = stage[:, 0, 0]
    for j in range(1, stage.shape[1]):
        best = combine(combine(best, hop[:, j - 1])[:, :, None], stage[:, j]).min(axis=1)
    return Costs(best[:, -1], np.full(len(stage), -1))


def over_subsets(stage: Floats, hop: Floats, combine: np.ufunc, least: int) -> Costs:
    """order.py's exact search for every row at once: `stage` (rows, nodes, P, P), `hop` (rows, nodes, nodes, P)."""
    rows, nodes, positions = stage.shape[:3]
    best = np.full((rows, 1 << nodes, nodes, positions), np.inf)
    cost, answer = np.full(rows, np.inf), np.zeros(rows, dtype=np.int64)
    for size in range(1, nodes + 1):
        used, newest, others = sets_of(nodes, size)
        if size == 1:
            best[:, used, newest] = stage[:, newest, 0]
        else:
            before = used ^ (1 << newest)
            reach = combine(best[:, before[:, None], others], hop[:, others, newest[:, None]]).min(axis=2)
            best[:, used, newest] = combine(reach[..., None], stage[:, newest]).min(axis=2)
        if size >= least:
            ends = best[:, used, newest, -1]
            at = ends.argmin(axis=1)
            found = ends[np.arange(rows), at]
            better = found < cost
            cost[better], answer[better] = found[better], used[at[better]]
    return Costs(cost, answer)
