"""Where a search for clusters starts: nodes as points, k-means on the points, and repair of the groups.

Coordinates are where a node lies in the latency graph (classical multidimensional scaling of the one-way latencies; of
more than LANDMARKED nodes, those to LANDMARKS of them that lie far apart), log rate and log speed. The latency
coordinates are scaled together to unit variance, rate and speed each by itself; what is the same for all nodes stays 0.

k-means is seeded, and a trace of seeded noise tells equal nodes apart. As long as a group cannot hold the model, it is
given the nearest node that some other group can spare; where no group can spare one, there is no grouping for this k.

Where there are rules, `regrouped` mends the groups: atoms (nodes that stay together) go where most of their nodes are;
a group is divided until each part is allowed; a part that does not hold the model is given up, unless it has nodes that
must run. These take the nearest nodes that may join them, first of those that nobody has, then of those that others can
spare. Nodes that are left over belong to nobody.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.spans import Floats
from cluster_planner.search.estimates import Group, merged

LATENCY_DIMENSIONS = 3
TINY = 1e-9

EQUAL = 1e-7
"""Eigenvalues that differ by less than this part of the largest one are taken to be equal."""

DIGITS = 9
"""Decimals of an eigenvector's entries. What lies behind them depends on the processor's order of additions."""

LANDMARKED = 400
LANDMARKS = 48


NOISE = 1e-3

RESTARTS = 24
"""The number of k-means, each from other centres, of which the best is taken where all nodes are grouped."""

ITERATIONS = 12
"""The number of times that each of them moves its centres."""

EVERY_K = 8

Answer = Callable[[Group], bool]


def counts_to_try(nodes: int, least: int) -> Iterator[int]:
    """Return the numbers of clusters to try, from many to few: each up to EVERY_K, then a quarter more each time."""
    counts, k = [], 1
    while k <= nodes // least:
        counts.append(k)
        k = k + 1 if k < EVERY_K else k + k // 4
    return reversed(counts)


def embed(fleet: Fleet, names: Sequence[str]) -> Floats:
    """Return one row per node, shape (nodes, LATENCY_DIMENSIONS + 2), standardised."""
    nodes = [fleet.node(name) for name in names]
    numbers = np.array([fleet.arrays.number_of[name] for name in names])
    if len(names) <= LANDMARKED:
        places = classical_scaling(fleet.arrays.between(numbers, numbers)[0], LATENCY_DIMENSIONS)
    else:
        places = _by_landmarks(fleet, numbers)
    places = scale_together(places)
    rates = np.log([min(node.up_bytes_per_s, node.down_bytes_per_s) for node in nodes])
    speeds = np.log([node.flops_per_s for node in nodes])
    points = np.column_stack([places, scale_together(rates[:, None]), scale_together(speeds[:, None])])
    return np.asarray(np.round(points, DIGITS))


def _by_landmarks(fleet: Fleet, numbers: NDArray[np.int64]) -> Floats:
    """Landmark scaling (de Silva and Tenenbaum): landmarks by classical scaling, each node by its distances to them.
    Each landmark is the node farthest from those before it.
    """
    chosen, rows = [0], [fleet.arrays.between(numbers[:1], numbers)[0][0]]
    while len(chosen) < LANDMARKS:
        chosen.append(int(np.min(rows, axis=0).argmax()))
        rows.append(fleet.arrays.between(numbers[chosen[-1:]], numbers)[0][0])
    distance = np.array(rows)
    between = distance[:, chosen]
    landmarks = classical_scaling(between, LATENCY_DIMENSIONS)
    size = (landmarks**2).sum(axis=0)
    inverse = np.divide(landmarks, size, out=np.zeros_like(landmarks), where=size > TINY * max(TINY, float(size.max())))
    return np.asarray(-0.5 * (distance**2 - (between**2).mean(axis=1)[:, None]).T @ inverse)


def classical_scaling(distance: Floats, dimensions: int) -> Floats:
    """Return the points whose mutual distances come nearest to `distance` (n, n), in the sense of Torgerson.

    Returns shape (n, dimensions). Columns are 0 where the distances need fewer dimensions.
    """
    count = len(distance)
    centring = np.eye(count) - 1.0 / count
    values, vectors = largest_eigenvectors(-0.5 * centring @ (distance**2) @ centring, min(dimensions, count))
    points = vectors * np.sqrt(np.maximum(values, 0.0))
    return np.pad(points, ((0, 0), (0, dimensions - points.shape[1])))


def largest_eigenvectors(matrix: Floats, wanted: int) -> tuple[Floats, Floats]:
    """Return the `wanted` largest eigenvalues of a symmetric matrix (n, n), and their eigenvectors (n, wanted).

    Vectors of equal eigenvalues may be rotated among each other at will, and LAPACK's choice depends on the processor:
    three regions at equal distances are such a case. Here the projections of fixed vectors onto the space of equal
    eigenvalues are orthonormalised instead, and the result is rounded. So the same fleet gives the same points, and the
    same plan, on every machine.
    """
    values, vectors = np.linalg.eigh(matrix)
    values, vectors = values[::-1], vectors[:, ::-1]
    fixed = np.random.default_rng(0).normal(size=(len(matrix), wanted))
    equal = EQUAL * max(float(np.abs(values).max(initial=0.0)), TINY)
    found: list[Floats] = []
    start = 0
    while start < wanted:
        end = start + 1
        while end < len(values) and values[end - 1] - values[end] <= equal:
            end += 1
        space, taken = vectors[:, start:end], min(end, wanted) - start
        basis, triangle = np.linalg.qr(space @ (space.T @ fixed[:, :taken]))
        found.append(basis * np.where(np.diagonal(triangle) < 0, -1.0, 1.0))
        start = end
    rounded: Floats = np.asarray(np.hstack(found), dtype=np.float64).round(DIGITS)
    return values[:wanted], rounded


def scale_together(columns: Floats) -> Floats:
    """Centre each column; divide all by one number so that their variances add up to 1. Constant columns
    become 0.
    """
    centred = columns - columns.mean(axis=0)
    size = float(np.sqrt((centred**2).mean(axis=0).sum()))
    magnitude = float(np.abs(columns).max(initial=0.0))
    return centred / size if size > TINY * max(magnitude, TINY) else np.zeros_like(centred)


def group_nodes(
    points: Floats, k: int, seed: int, holds: Callable[[Sequence[int]], bool], restarts: int = RESTARTS
) -> tuple[tuple[int, ...], ...] | None:
    """k groups of row indices, each of which `holds` the model; None where repair finds no way.

    Groups are sorted, and so are the indices in each.
    """
    if k == 1:
        groups = [list(range(len(points)))]
    else:
        labels = _labels(points + np.random.default_rng(seed).normal(scale=NOISE, size=points.shape), k, seed, restarts)
        groups = [[i for i, label in enumerate(labels) if label == group] for group in range(k)]
    repaired = repair(points, groups, holds)
    return None if repaired is None else tuple(sorted(tuple(sorted(group)) for group in repaired))


def _labels(points: Floats, k: int, seed: int, restarts: int) -> list[int]:
    """Return the group of each point, by the best of so many k-means. A group may be empty."""
    # Imported here: whoever only reads a plan (each stage process) need not pay for it.
    from scipy.cluster.vq import kmeans2

    random, best, least = np.random.default_rng(seed), list[int](), math.inf
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "One of the clusters is empty")
        for _ in range(restarts):
            centres, labels = kmeans2(points, k, iter=ITERATIONS, minit="++", rng=random)
            if (apart := float(((points - centres[labels]) ** 2).sum())) < least:
                best, least = labels.tolist(), apart
    return best


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


def regrouped(
    points: Floats,
    groups: Sequence[Group],
    atoms: Sequence[Group],
    needed: frozenset[int],
    allows: Answer,
    holds: Answer,
) -> tuple[Group, ...] | None:
    """Return the groups after mending, or None where some of the `needed` nodes find no group.

    `atoms`: of the nodes in `groups`.
    """
    parts: list[Group] = []
    for together in _gathered(groups, atoms):
        parts += _divided(points, together, needed, allows)
    for part in parts.copy():
        if not needed & set(part) and not holds(part):
            parts.remove(part)
    taken = {node for part in parts for node in part}
    loose = [atom for atom in atoms if taken.isdisjoint(atom)]
    atom_of = {node: atom for atom in atoms for node in atom}
    while short := [part for part in parts if not holds(part)]:
        part = short[0]
        nearer = _by_distance(points, part)
        joined = next((atom for atom in sorted(loose, key=nearer) if allows(merged(part, atom))), None)
        if joined is not None:
            loose.remove(joined)
        else:
            given = _spared(part, parts, atom_of, needed, allows, holds, nearer)
            if given is None:
                return None
            giver, joined = given
            parts.remove(giver)
            left = tuple(node for node in giver if node not in joined)
            if left and holds(left):
                parts.append(left)
            else:
                loose += list(dict.fromkeys(atom_of[node] for node in left))
        parts[parts.index(part)] = merged(part, joined)
    return tuple(sorted(parts)) or None


def _gathered(groups: Sequence[Group], atoms: Sequence[Group]) -> list[list[Group]]:
    """Return the atoms of each group: each atom is with most of its nodes."""
    group_of = {node: i for i, group in enumerate(groups) for node in group}
    gathered: list[list[Group]] = [[] for _ in groups]
    for atom in atoms:
        places = [group_of[node] for node in atom]
        gathered[max(places, key=lambda i: (places.count(i), -i))].append(atom)
    return gathered


def _divided(points: Floats, atoms: Sequence[Group], needed: frozenset[int], allows: Answer) -> list[Group]:
    """Divide a group into as many parts as it takes until every part is allowed.

    Needed nodes come first, then those nearest to the centre; each goes to the first part that allows it.
    """
    if not atoms:
        return []
    nearer = _by_distance(points, merged(*atoms))
    parts: list[Group] = []
    for atom in sorted(atoms, key=lambda atom: (not needed & set(atom), nearer(atom))):
        at = next((i for i, part in enumerate(parts) if allows(merged(part, atom))), None)
        if at is None:
            parts.append(atom)
        else:
            parts[at] = merged(parts[at], atom)
    return parts


def _spared(
    part: Group,
    parts: Sequence[Group],
    atom_of: dict[int, Group],
    needed: frozenset[int],
    allows: Answer,
    holds: Answer,
    nearer: Callable[[Group], tuple[float, Group]],
) -> tuple[Group, Group] | None:
    """Return (who gives, the atom given): of a group that holds the model without it, else of one that need not be."""
    offers = [
        (giver, atom_of[node])
        for giver in parts
        if giver != part
        for node in giver
        if not needed & set(atom_of[node]) and allows(merged(part, atom_of[node]))
    ]
    able = [offer for offer in offers if holds(tuple(node for node in offer[0] if node not in offer[1]))]
    free = [offer for offer in offers if not needed & set(offer[0])]
    return min(able or free, key=lambda offer: nearer(offer[1]), default=None)


def _by_distance(points: Floats, part: Group) -> Callable[[Group], tuple[float, Group]]:
    centre = points[list(part)].mean(axis=0)
    return lambda atom: (float(np.linalg.norm(points[list(atom)].mean(axis=0) - centre)), atom)
