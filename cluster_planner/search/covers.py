"""Starts that cover the model as often as possible in the time of a round.

A round of averaging ends when its slowest member has sent its part and every cluster has made its share of the samples.
So where rounds starve, a plan of k clusters is worth more the shorter the time I in which each of k clusters can make
its share s and average once. What a node can do within I is known without any plan: the units from a to b, if

    s · flops(a, b) / speed ≤ I    and    (s · bytes at both cuts + v · parameters(a, b)) / link ≤ I,

for its uplink and its downlink, where v is how many times a member sends its vector, and if they fit in its memory. So
for each k the shortest I is looked for in which the nodes cover the model k times: each cluster begins with the node
that reaches furthest, and ends with the one of least use that completes it. Nodes with slow links get few parameters or
none, and nodes with fast ones many. In: a fleet and costs. Out: the nodes of each cluster with their cuts.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.spans import Floats, SpanCosts
from cluster_planner.pipeline.cost_tables import GroupNodes
from cluster_planner.search.estimates import Group

HALVINGS = 8
"""The number of times that I is tried between what is too short and what is enough."""

WINDOW = 2
"""So many micro-batches in flight have to fit in memory."""

Cover = tuple[tuple[tuple[int, int, int], ...], ...]
"""(node, start, end) of each stage of each cluster, in units."""


def covers(fleet: Fleet, spans: SpanCosts, nodes: Group, clusters: Sequence[int], least: int) -> Iterator[Cover]:
    """Yield a cover for each of these numbers of clusters for which there is one. `least`: stages of a cluster."""
    group, at = GroupNodes(fleet, [fleet.names[i] for i in nodes]), spans.positions.tolist()
    fits = spans.ways_that_fit(*group.rooms, WINDOW).any(axis=0)
    for count in clusters:
        stage_s, hop_s = _seconds(spans, group, count)
        stage_s = np.where(fits, stage_s, np.inf)
        if (found := _shortest(stage_s, hop_s, count, least)) is not None:
            yield tuple(tuple((nodes[i], at[start], at[end]) for i, start, end in chain) for chain in found)
        # From the last unit to the first.
        stage_s, hop_s = stage_s[:, ::-1, ::-1].swapaxes(1, 2), hop_s[:, :, ::-1].swapaxes(0, 1)
        if (found := _shortest(stage_s, hop_s, count, least)) is not None:
            last = len(at) - 1
            yield tuple(
                tuple((nodes[i], at[last - end], at[last - start]) for i, start, end in reversed(chain))
                for chain in found
            )


def _seconds(spans: SpanCosts, group: GroupNodes, clusters: int) -> tuple[Floats, Floats]:
    """Return how long each span [node, i, j] and each hop [sender, receiver, i] takes a node in each round."""
    work = spans.workload
    micro_batches = work.round_samples(clusters) / clusters / work.micro_batch
    averaged = work.vectors_sent(clusters) * work.averaged_bytes_per_parameter_byte * spans.parameter_table
    forward, gradient = spans.forward_bytes[spans.positions], spans.gradient_bytes[spans.positions]
    seconds = spans.table_with_reading(spans.flops_table() / group.flops_per_s[:, None, None]) * micro_batches
    sent, received = gradient[:, None] + forward[None, :], forward[:, None] + gradient[None, :]
    for flows, rate in ((sent, group.up_bytes_per_s), (received, group.down_bytes_per_s)):
        seconds = np.maximum(seconds, (micro_batches * flows + averaged) / rate[:, None, None])
    rate = group.flow_bytes_per_s
    return seconds, micro_batches * np.maximum(forward / rate[:, :, None], gradient / rate.T[:, :, None])


Chain = list[tuple[int, int, int]]


def _shortest(stage_s: Floats, hop_s: Floats, count: int, least: int) -> list[Chain] | None:
    """Return the cover of the shortest time that is found, or None where the model cannot be covered so often."""
    finite = stage_s[np.isfinite(stage_s)]
    if not len(finite):
        return None
    low_s, high_s = float(finite.min()), float(max(finite.max(), hop_s.max()))
    best = _covered(stage_s <= high_s, hop_s <= high_s, count, least)
    for _ in range(HALVINGS if best is not None else 0):
        middle_s = float(np.sqrt(low_s * high_s))
        found = _covered(stage_s <= middle_s, hop_s <= middle_s, count, least)
        if found is None:
            low_s = middle_s
        else:
            best, high_s = found, middle_s
    return best


def _covered(may_run: NDArray[np.bool_], may_hop: NDArray[np.bool_], count: int, least: int) -> list[Chain] | None:
    """Return so many disjoint chains of nodes that cover all positions, or None where this way finds fewer."""
    nodes, end = len(may_run), may_run.shape[1] - 1
    places = np.arange(end + 1)
    reach = np.where(may_run, places, 0).max(axis=2)
    use = np.maximum(reach - places, 0).sum(axis=1)
    free = np.ones(nodes, dtype=bool)
    chains: list[Chain] = []
    while len(chains) < count:
        chain: Chain = []
        at = 0
        while at < end:
            to = np.minimum(np.where(free, reach[:, at], 0), end - max(0, least - len(chain) - 1))
            if chain:
                to = np.where(may_hop[chain[-1][0], :, at], to, 0)
            furthest = int(to.max())
            if furthest <= at:
                break
            able = np.flatnonzero(to == furthest)
            node = int(able[use[able].argmin()])
            chain.append((node, at, furthest))
            free[node], at = False, furthest
        if at == end:
            chains.append(chain)
        elif chain:
            free[[node for node, _, _ in chain[1:]]] = True  # only the node that begins a chain without an end is out
        else:
            return None
    return chains
