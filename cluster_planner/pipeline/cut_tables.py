"""What stages and hops of one group's nodes cost, as tables over cut positions, for the searches of best_pipeline.py.

Decides nothing: occupancy for bottlenecks, seconds for round trips, by the formulas of stage_times.py. Where nodes of
the
group share a host, a boundary's flow counts by itself against the uplink, since which neighbours are on the host is not
known yet.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.spans import Floats, SpanCosts
from cluster_planner.pipeline.cuts import Tables


class GroupNodes:
    """The nodes of a search, as arrays in the order of `names`."""

    def __init__(self, fleet: Fleet, names: Sequence[str]) -> None:
        sites = fleet.sites
        at = np.array([sites.number_of[name] for name in names])
        self.flops_per_s, self.memory_bytes = sites.flops_per_s[at], sites.memory_bytes[at]
        self.up_bytes_per_s, self.down_bytes_per_s = sites.up_bytes_per_s[at], sites.down_bytes_per_s[at]
        self.latency_s, self.flow_bytes_per_s = sites.between(at, at)
        hosts = sites.host[at]
        self.mates = np.where(hosts < 0, 1, (hosts[:, None] == hosts).sum(axis=1))


def bottleneck_tables(spans: SpanCosts, group: GroupNodes, averaging_per_s: float, flops: Floats) -> Tables:
    """Occupancy in seconds, when averaging moves `averaging_per_s` bytes each way per parameter byte."""
    forward, gradient = spans.forward_bytes[spans.positions], spans.gradient_bytes[spans.positions]
    averaged = averaging_per_s * spans.parameter_table
    sent, received = gradient[:, None] + forward[None, :], forward[:, None] + gradient[None, :]
    stage = flops / group.flops_per_s[:, None, None]
    alone = (group.mates == 1)[:, None, None]
    for flows, rate in ((sent, group.up_bytes_per_s), (received, group.down_bytes_per_s)):
        if averaging_per_s == 0.0:
            busy = np.where(alone, flows / rate[:, None, None], 0.0)
        else:
            left = rate[:, None, None] - group.mates[:, None, None] * averaged
            busy = np.where(left > 0, np.where(alone, flows, 0.0) / np.where(left > 0, left, 1.0), np.inf)
        stage = np.maximum(stage, busy)
    rate = group.flow_bytes_per_s
    hop = np.maximum(forward / rate[:, :, None], gradient / rate.T[:, :, None])
    return Tables(stage, hop)


def round_trip_tables(spans: SpanCosts, group: GroupNodes, flops: Floats) -> Tables:
    """What each adds to a round trip, in seconds."""
    forward, gradient = spans.forward_bytes[spans.positions], spans.gradient_bytes[spans.positions]
    rate = group.flow_bytes_per_s
    hop = 2 * group.latency_s[:, :, None] + forward / rate[:, :, None] + gradient / rate.T[:, :, None]
    return Tables(flops / group.flops_per_s[:, None, None], hop)


def ending(tables: Tables, ends: Sequence[int]) -> Tables:
    """Tables that let no node but this one run the last stage, and it no other."""
    for node in ends:
        others = np.arange(len(tables.stage)) != node
        tables.stage[others, :, -1] = np.inf
        tables.stage[node, :, :-1] = np.inf
    return tables


def both_ways(spans: SpanCosts, tables: Callable[[Floats], Tables]) -> tuple[Tables, Tables]:
    """`tables` of the FLOPs of stages that keep their activations, and of those that recompute them."""
    return tables(spans.flops_table()), tables(spans.flops_table(recomputes=True))


def first_that_fits(both: tuple[Tables, Tables], fits: NDArray[np.bool_]) -> Tables:
    """`fits`: [way, node, i, j]. The first way that does."""
    keep, again = both
    return Tables(np.where(fits[0], keep.stage, np.where(fits[1], again.stage, np.inf)), keep.hop)
