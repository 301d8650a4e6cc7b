"""Nodes as points, so that k-means can group them.

Decides the coordinates: where a node lies in the latency graph (classical multidimensional scaling of the one-way
latencies; of more than LANDMARKED nodes, those to LANDMARKS of them that lie far apart), log rate and log speed. The
latency coordinates are scaled together to unit variance, rate and speed each by itself; what is the same for all nodes
stays 0. Distances in the plane are the only thing that later steps use.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.spans import Floats

LATENCY_DIMENSIONS = 3
TINY = 1e-9

LANDMARKED = 400
LANDMARKS = 48


def embed(fleet: Fleet, names: Sequence[str]) -> Floats:
    """One row per node, shape (nodes, LATENCY_DIMENSIONS + 2), standardised."""
    nodes = [fleet.node(name) for name in names]
    numbers = np.array([fleet.sites.number_of[name] for name in names])
    if len(names) <= LANDMARKED:
        places = classical_scaling(fleet.sites.between(numbers, numbers)[0], LATENCY_DIMENSIONS)
    else:
        places = _by_landmarks(fleet, numbers)
    places = scale_together(places)
    rates = np.log([min(node.up_bytes_per_s, node.down_bytes_per_s) for node in nodes])
    speeds = np.log([node.flops_per_s for node in nodes])
    return np.column_stack([places, scale_together(rates[:, None]), scale_together(speeds[:, None])])


def _by_landmarks(fleet: Fleet, numbers: NDArray[np.int64]) -> Floats:
    """Landmark scaling (de Silva and Tenenbaum): landmarks by classical scaling, each node by its distances to them.
    Each landmark is the node farthest from those before it.
    """
    chosen, rows = [0], [fleet.sites.between(numbers[:1], numbers)[0][0]]
    while len(chosen) < LANDMARKS:
        chosen.append(int(np.min(rows, axis=0).argmax()))
        rows.append(fleet.sites.between(numbers[chosen[-1:]], numbers)[0][0])
    distance = np.array(rows)
    between = distance[:, chosen]
    landmarks = classical_scaling(between, LATENCY_DIMENSIONS)
    size = (landmarks**2).sum(axis=0)
    inverse = np.divide(landmarks, size, out=np.zeros_like(landmarks), where=size > TINY * max(TINY, float(size.max())))
    return np.asarray(-0.5 * (distance**2 - (between**2).mean(axis=1)[:, None]).T @ inverse)


def classical_scaling(distance: Floats, dimensions: int) -> Floats:
    """Points whose distances come nearest to `distance` (n, n), in the sense of Torgerson; shape (n,
    dimensions).
    """
    count = len(distance)
    centring = np.eye(count) - 1.0 / count
    values, vectors = np.linalg.eigh(-0.5 * centring @ (distance**2) @ centring)
    largest = np.argsort(-values, kind="stable")[:dimensions]
    points = vectors[:, largest] * np.sqrt(np.maximum(values[largest], 0.0))
    signs = np.sign(points[np.abs(points).argmax(axis=0), np.arange(points.shape[1])])
    points = points * np.where(signs == 0, 1.0, signs)
    return np.pad(points, ((0, 0), (0, dimensions - points.shape[1])))


def scale_together(columns: Floats) -> Floats:
    """Centre each column; divide all by one number so that their variances add up to 1. Constant columns
    become 0.
    """
    centred = columns - columns.mean(axis=0)
    size = float(np.sqrt((centred**2).mean(axis=0).sum()))
    magnitude = float(np.abs(columns).max(initial=0.0))
    return centred / size if size > TINY * max(magnitude, TINY) else np.zeros_like(centred)
