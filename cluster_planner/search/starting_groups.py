"""Which nodes form a cluster: k-means, then repair.

Decides the groups for one k. k-means (seeded) runs on the embedding; a trace of seeded noise tells equal
nodes apart. Repair: as long as a group cannot hold the model, it is given the nearest node that some other
group can spare. Where no group can spare one, there is no grouping for this k. The only module that knows
scikit-learn.
"""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from threadpoolctl import ThreadpoolController

from cluster_planner.inputs.spans import Floats

NOISE = 1e-3
RESTARTS = 4


def group_nodes(
    points: Floats, k: int, seed: int, holds: Callable[[Sequence[int]], bool], restarts: int = RESTARTS
) -> tuple[tuple[int, ...], ...] | None:
    """k groups of row indices, each of which `holds` the model; None where repair finds no way.

    Groups are sorted, and so are the indices in each.
    """
    if k == 1:
        groups = [list(range(len(points)))]
    else:
        # Imported here: it takes a second, and whoever only reads a plan (each stage process) need not pay it.
        from sklearn.cluster import KMeans

        noise = np.random.default_rng(seed).normal(scale=NOISE, size=points.shape)
        with _threads().limit(limits=1, user_api="openmp"):  # of so few points, threads cost more than they save
            labels = KMeans(n_clusters=k, n_init=restarts, random_state=seed).fit_predict(points + noise)
        groups = [[i for i, label in enumerate(labels) if label == group] for group in range(k)]
    repaired = repair(points, groups, holds)
    return None if repaired is None else tuple(sorted(tuple(sorted(group)) for group in repaired))


@cache
def _threads() -> ThreadpoolController:
    """The thread pools of the libraries that are loaded: scikit-learn's must be among them."""
    return ThreadpoolController()


def repair(
    points: Floats, groups: Sequence[Sequence[int]], holds: Callable[[Sequence[int]], bool]
) -> list[list[int]] | None:
    """Move nodes until every group holds the model. A group that does hold it is never made unable to."""
    repaired = [list(group) for group in groups]
    while short := [g for g in range(len(repaired)) if not holds(repaired[g])]:
        needy = max(short, key=lambda g: (len(repaired[g]), -g))
        centre = points[repaired[needy]].mean(axis=0) if repaired[needy] else points.mean(axis=0)
        spared = [
            (float(np.linalg.norm(points[i] - centre)), i, g)
            for g, group in enumerate(repaired)
            if g not in short
            for i in group
            if holds([other for other in group if other != i])
        ]
        if not spared:
            return None
        _, node, giver = min(spared)
        repaired[giver].remove(node)
        repaired[needy].append(node)
    return repaired
