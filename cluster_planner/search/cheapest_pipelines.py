"""The cheapest pipeline of each of many groups at once, as arrays: in a given order, or over all subsets and orders.

Decides what node_order.py decides for one group. Knows costs only: of a stage by its node and cuts, of a hop by its
nodes
and cut, and how they combine (the largest of them, or their sum). A row is a group; rows are the last axis, so that
numpy's innermost loops are long.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cluster_planner.inputs.spans import Floats
from cluster_planner.pipeline.order_and_cuts import sets_of


@dataclass(frozen=True)
class Costs:
    """The least cost in each row, and the nodes that run stages then, as bits; −1 for all."""

    cost: Floats
    used: NDArray[np.int64]


def chains(distance: Floats, alone_s: Floats) -> NDArray[np.int64]:
    """[step, row]: each row's nodes in the order of a nearest-neighbour tour that starts with its slowest. `distance`
    (nodes, nodes, rows), `alone_s` (nodes, rows).
    """
    nodes, rows = alone_s.shape
    every = np.arange(rows)
    chain = np.empty((nodes, rows), dtype=np.int64)
    chain[0] = alone_s.argmax(axis=0)
    taken = np.zeros((nodes, rows))
    for step in range(1, nodes):
        taken[chain[step - 1], every] = np.inf
        chain[step] = (distance[chain[step - 1], :, every].T + taken).argmin(axis=0)
    return chain


def in_order(stages: Iterable[Floats], hop: Floats, combine: np.ufunc) -> Costs:
    """Of pipelines of all nodes in their order: the `stages` of one node after the other (P, P, rows), which are
    written over; `hop` (nodes − 1, P, rows) to the next.
    """
    given = iter(stages)
    best = next(given)[0].copy()
    for onward, stage in zip(hop, given, strict=True):
        combine(stage, combine(best, onward)[:, None], out=stage)
        np.minimum.reduce(stage, axis=0, out=best)
    return Costs(best[-1], np.full(best.shape[1], -1))


def over_subsets(stage: Floats, hop: Floats, combine: np.ufunc, least: int) -> Costs:
    """node_order.py's exact search for every row at once: `stage` (nodes, P, P, rows), `hop` (nodes, nodes, P,
    rows)."""
    nodes, positions, _, rows = stage.shape
    best = np.full((1 << nodes, nodes, positions, rows), np.inf)
    for node in range(nodes):
        best[1 << node, node] = stage[node, 0]
    cost, answer = np.full(rows, np.inf), np.zeros(rows, dtype=np.int64)
    for size in range(1, nodes + 1):
        used, newest, others = sets_of(nodes, size)
        for node in range(nodes) if size > 1 else ():
            mine = newest == node
            before = used[mine] ^ (1 << node)
            reach = combine(best[before[:, None], others[mine]], hop[others[mine], node]).min(axis=1)
            best[used[mine], node] = combine(reach[:, :, None], stage[node]).min(axis=1)
        if size >= least:
            ends = best[used, newest, -1]
            at = ends.argmin(axis=0)
            found = ends[at, np.arange(rows)]
            better = found < cost
            cost[better], answer[better] = found[better], used[at[better]]
    return Costs(cost, answer)
