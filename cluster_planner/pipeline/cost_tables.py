"""Tables of what each stage and each hop of a group's pipelines costs, on which orders and cuts are searched for.

They hold occupancy in seconds for bottlenecks, and seconds for round trips, by the formulas of stage_times.py. A stage
whose memory is too short for what it would keep recomputes it, if the workload allows, and takes longer. Where nodes
of the group share a host, a boundary's flow counts by itself against the uplink, since it is not known yet which
neighbours are on the host. In: nodes and costs. Out: tables (order_and_cuts.py).
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.spans import Floats, SpanCosts
from cluster_planner.pipeline.order_and_cuts import Tables


class GroupNodes:
    """The nodes of a search, as arrays in the order of `names`."""

    def __init__(self, fleet: Fleet, names: Sequence[str]) -> None:
        sites = fleet.arrays
        at = np.array([sites.number_of[name] for name in names])
        self.flops_per_s, self.room_bytes = sites.flops_per_s[at], sites.room_bytes[at]
        self.host_room_bytes = sites.host_room_bytes[at]
        self.up_bytes_per_s, self.down_bytes_per_s = sites.up_bytes_per_s[at], sites.down_bytes_per_s[at]
        self.latency_s, self.flow_bytes_per_s = sites.between(at, at)
        hosts = sites.host[at]
        self.mates = np.where(hosts < 0, 1, (hosts[:, None] == hosts).sum(axis=1))

    @classmethod
    def slowest_of(cls, fleet: Fleet, orders: Sequence[Sequence[str]]) -> "GroupNodes":
        """Return nodes that at each place are as slow as the slowest of all these orders, in each respect, with as
        little memory and links as slow.
        """
        group = cls(fleet, orders[0])
        for order in orders[1:]:
            other = cls(fleet, order)
            for name in (
                "flops_per_s",
                "room_bytes",
                "host_room_bytes",
                "up_bytes_per_s",
                "down_bytes_per_s",
                "flow_bytes_per_s",
            ):
                setattr(group, name, np.minimum(getattr(group, name), getattr(other, name)))
            group.latency_s = np.maximum(group.latency_s, other.latency_s)
            group.mates = np.maximum(group.mates, other.mates)
        return group

    @property
    def rooms(self) -> tuple[Floats, Floats]:
        """Return the room of each node, and of each GPU's machine, in bytes."""
        return self.room_bytes, self.host_room_bytes


def bottleneck_tables(spans: SpanCosts, group: GroupNodes, averaging_per_s: float, flops: Floats) -> Tables:
    """Occupancy in seconds, when averaging moves `averaging_per_s` bytes each way per parameter byte."""
    forward, gradient = spans.forward_bytes[spans.positions], spans.gradient_bytes[spans.positions]
    averaged = averaging_per_s * spans.parameter_table
    sent, received = gradient[:, None] + forward[None, :], forward[:, None] + gradient[None, :]
    stage = spans.table_with_reading(flops / group.flops_per_s[:, None, None])
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
    """Return the seconds that each stage and each hop adds to a round trip."""
    forward, gradient = spans.forward_bytes[spans.positions], spans.gradient_bytes[spans.positions]
    rate = group.flow_bytes_per_s
    hop = 2 * group.latency_s[:, :, None] + forward / rate[:, :, None] + gradient / rate.T[:, :, None]
    return Tables(spans.table_with_reading(flops / group.flops_per_s[:, None, None]), hop)


def ending(tables: Tables, ends: Sequence[int]) -> Tables:
    """Forbid, in place, all nodes but those of `ends` to run the last stage, and those to run any other."""
    for node in ends:
        others = np.arange(len(tables.stage)) != node
        tables.stage[others, :, -1] = np.inf
        tables.stage[node, :, :-1] = np.inf
    return tables


def both_ways(spans: SpanCosts, tables: Callable[[Floats], Tables]) -> tuple[Tables, Tables]:
    """Return `tables` of the FLOPs of stages that keep their activations, and of those that recompute them."""
    return tables(spans.flops_table()), tables(spans.flops_table(recomputes=True))


def tables_that_fit(both: tuple[Tables, Tables], fits: NDArray[np.bool_]) -> Tables:
    """Return the tables of a way that fits, where `fits` has several along its first axis place by place."""
    placed = [first_that_fits(both, each) for each in fits]
    return placed[0] if len(placed) == 1 else Tables(placed[0].stage, placed[0].hop, tuple(one.stage for one in placed))


def first_that_fits(both: tuple[Tables, Tables], fits: NDArray[np.bool_]) -> Tables:
    """Return the tables of the first way in which each span fits. `fits`: [way, node, i, j], see
    SpanCosts.ways_that_fit.
    """
    keep, again = both
    return Tables(np.where(fits[0], keep.stage, np.where(fits[1], again.stage, np.inf)), keep.hop)
