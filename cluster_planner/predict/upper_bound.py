"""An upper bound on the objective of any plan for a fleet, by relaxation.

The bound is computed for each number of clusters C, and the largest is taken. With u_i the part of the time that node i
computes, r_i the samples/s that it would make of the whole model alone, and w = Σ u_i over a cluster:

    the cluster makes at most Σ u_i·r_i samples/s, u_i ≤ 1
    a period is at least round trip / W, a round trip at least the sum of all stages' times: w ≤ W ≤ largest window
    so a sample counts at most s(w), the staleness factor of a window of w

Which node is in which cluster is relaxed: node i may give y_iw of its time to clusters of size w, Σ_w y_iw ≤ c_i, and
all clusters together are C: Σ y_iw / w ≤ C. That is a linear program with one joint constraint, whose Lagrangian

    λ·C + Σ_i c_i · max(0, max_w r_i·s(w) − λ/w)                 bounds it for every λ ≥ 0

c_i < 1 where a node's memory or uplink keeps it from more, if no cluster has one stage: else it may run one by itself,
and needs no uplink. Averaging bounds samples/s besides: all members together
send 2·(C − 1) times the weights a round. So does the data: no cluster is faster than they are read. What the bound
leaves out (latency, whole units, equal periods in a cluster) only makes plans worse, so the bound holds, and may be
far.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.spans import Floats, SpanCosts
from cluster_planner.predict.objective import STALENESS_COST, averaging_factor

EVERY_C = 16
SIZES = 24
STEPS = 30


def best_possible(fleet: Fleet, spans: SpanCosts, able: Sequence[int], least: int) -> float:
    """Return an upper bound on the objective of any plan. `able`: the numbers of the nodes that can hold a unit."""
    work = spans.workload
    sites, nodes = fleet.arrays, np.array(able)
    per_micro_batch = spans.flops(0, spans.count)
    alone = work.micro_batch * sites.flops_per_s[nodes] / max(per_micro_batch, 1e-9)
    holds, share = _largest_parts(spans, sites.room_bytes[nodes])
    part = np.ones(len(nodes))
    if len(nodes) > 1 and holds.max() < 1 - 1e-9:  # nobody holds the model, so each cluster has two stages at least
        least = max(least, 2)
    if least > 1:
        part = np.minimum(part, share * work.micro_batch / _least_transfer_s(fleet, spans, nodes) / alone)
    there = np.array([fleet.rules.presence((node,)) for node in able])  # what is made while a node is away counts 0
    most = min(len(nodes) // least, int(holds.sum() * (1 + 1e-9)))
    sizes = np.unique(np.concatenate(([0.0], np.geomspace(1.0, work.largest_window, SIZES))))
    counts = _counts(max(1, most))
    bound = 0.0
    for first, last in zip(counts, (*(c - 1 for c in counts[1:]), max(1, most)), strict=True):
        made = min(_relaxed(alone * there, part, sizes, last, spans), _averaged(fleet, spans, nodes, first))
        if work.reading_s > 0:
            made = min(made, last * work.micro_batch * max(1, work.readers) / work.reading_s)
        bound = max(bound, averaging_factor(first, work) * made)
    return bound


def _relaxed(alone: Floats, part: Floats, sizes: Floats, clusters: int, spans: SpanCosts) -> float:
    """Return the least Lagrangian found: what all nodes make, each sample counted for its staleness."""
    work = spans.workload
    delay = np.minimum(np.maximum(sizes[:-1] - 1, 0) / (2 * work.update_every), work.max_staleness)
    if len(sizes) == 2:
        delay = np.zeros(1)
    counted = 1.0 / (1.0 + STALENESS_COST * delay)
    largest = sizes[1:]  # a cluster of a size in between counts as the smaller for staleness, as the larger for room

    def lagrangian(price: float) -> float:
        gains = (alone[:, None] * counted - price / largest).max(axis=1)
        return float(price * clusters + (part * np.maximum(gains, 0.0)).sum())

    low, high = 0.0, float(alone.max() * largest[-1])
    for _ in range(STEPS):  # convex in the price
        third = (high - low) / 3
        if lagrangian(low + third) <= lagrangian(high - third):
            high -= third
        else:
            low += third
    return min(lagrangian(low), lagrangian(high), lagrangian(0.0))


def _averaged(fleet: Fleet, spans: SpanCosts, nodes: NDArray[np.int64], clusters: int) -> float:
    """Samples/s at which the rings of so many clusters could still keep up, if their bytes were spread at will."""
    if clusters == 1 or (fleet.arrays.host[nodes] >= 0).any():
        return float("inf")
    work = spans.workload
    sent = clusters * work.vectors_sent(clusters) * work.averaged_bytes_per_parameter_byte
    moved = sent * spans.parameter_bytes(0, spans.count)
    up, down = fleet.arrays.up_bytes_per_s[nodes].sum(), fleet.arrays.down_bytes_per_s[nodes].sum()
    sending = moved / min(up, down)
    return float(work.round_samples(clusters) / sending) if sending > 0 else float("inf")


def _largest_parts(spans: SpanCosts, memory: Floats) -> tuple[Floats, Floats]:
    """Return for each node the largest part of the parameters, and of the FLOPs, of any span that it can hold."""
    work = spans.workload
    in_flight = work.update_every if work.schedule == "gpipe" else 1
    needed = spans.memory_table(in_flight)
    if work.activation_checkpointing != "never":
        needed = np.minimum(needed, spans.memory_table(in_flight, recomputes=True))
    every = np.isfinite(needed)
    order = np.argsort(needed[every])
    below = np.searchsorted(needed[every][order], memory, side="right")
    parts = []
    for table in (spans.parameter_table, spans.flops_table()):
        whole = table[0, -1]
        grown = np.maximum.accumulate(table[every][order]) / whole if whole > 0 else np.ones(every.sum())
        parts.append(np.concatenate(([0.0], grown))[below])
    return parts[0], parts[1]


def _least_transfer_s(fleet: Fleet, spans: SpanCosts, nodes: NDArray[np.int64]) -> Floats:
    """Return the least seconds per micro-batch that each node's links are busy with one neighbour; 0 within a host."""
    inner = spans.positions[1:-1]
    if not len(inner):
        return np.full(len(nodes), 1e-12)
    forward, gradient = spans.forward_bytes[inner], spans.gradient_bytes[inner]
    up, down = fleet.arrays.up_bytes_per_s[nodes][:, None], fleet.arrays.down_bytes_per_s[nodes][:, None]
    first, last = np.maximum(forward / up, gradient / down), np.maximum(gradient / up, forward / down)
    seconds = np.minimum(first, last).min(axis=1)
    return np.maximum(np.where(fleet.arrays.host[nodes] >= 0, 0.0, seconds), 1e-12)


def _counts(most: int) -> list[int]:
    """Return where intervals of numbers of clusters begin."""
    counts, c = [], 1
    while c <= most:
        counts.append(c)
        c = c + 1 if c < EVERY_C else c + c // 8
    return counts
