"""What stages and hops of many groups of nodes cost, as arrays for cheapest_pipelines.py.

Decides the layout. Groups of about one size are together: node by node and row by row (one row a group), NOBODY where
a group has fewer. A stage's figures depend on its node, and on how many of its host's nodes are in the group; so they
are tables with one entry for each such case, and rows say which entry is theirs. NOBODY has no units, at no cost, and
is at no distance: in a pipeline it takes no part. Knows no search.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cluster_planner.inputs.fleet_arrays import Sites
from cluster_planner.inputs.spans import Floats, SpanCosts
from cluster_planner.pipeline.recomputation import ways_that_fit
from cluster_planner.search.host_links import NOBODY, mates, shared_rates, shares

FAR = 1e300
"""Farther than any node is: where nobody is."""

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Tables:
    """Seconds by cut positions and entry [i, j, entry]: `compute`, recomputing `again`, and `uplinks`. Of each entry
    its `memory_bytes`, endless for nobody.
    """

    compute: Floats
    again: Floats
    uplinks: Floats
    memory_bytes: Floats


@dataclass(frozen=True)
class GroupCosts:
    """`entry` and `speed` (FLOP/s; infinite for nobody): [node, row]; `latency_s`, `flow_bytes_per_s` and what the
    group's part of hosts' links carries, `shared_bytes_per_s` (None without hosts): [node, node, row].
    """

    spans: SpanCosts
    tables: Tables
    entry: Numbers
    speed: Floats
    latency_s: Floats
    flow_bytes_per_s: Floats
    shared_bytes_per_s: Floats | None

    def of(self, rows: NDArray[np.bool_]) -> "GroupCosts":
        """Of these rows only."""
        if rows.all():
            return self
        shared = self.shared_bytes_per_s
        return replace(
            self,
            entry=self.entry[:, rows],
            speed=self.speed[:, rows],
            latency_s=self.latency_s[..., rows],
            flow_bytes_per_s=self.flow_bytes_per_s[..., rows],
            shared_bytes_per_s=None if shared is None else shared[..., rows],
        )

    @property
    def fastest(self) -> Floats:
        """[row]: FLOP/s of the fastest node."""
        fastest: Floats = np.where(np.isinf(self.speed), 0.0, self.speed).max(axis=0)
        return fastest

    def fits(self, window: int) -> NDArray[np.bool_]:
        """[way, i, j, entry]: see `ways_that_fit`; with `window` micro-batches in flight."""
        return ways_that_fit(self.spans, self.tables.memory_bytes, window).transpose(0, 2, 3, 1)

    def stages(self, fits: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """(seconds of computing, seconds until the next micro-batch), [i, j, entry]."""
        compute = np.where(fits[0], self.tables.compute, np.where(fits[1], self.tables.again, np.inf))
        return compute, np.maximum(compute, self.tables.uplinks)

    def hops(self, before: Numbers, after: Numbers) -> tuple[Floats, Floats]:
        """(seconds of a round trip, of the longer way) from nodes to nodes, [..., position, row]. `before` and `after`
        (…, row, or 1 for all rows): which nodes of each group.
        """
        rows = np.arange(self.entry.shape[1])
        there, back = (before, after, rows), (after, before, rows)
        forward = self.spans.forward_bytes[self.spans.positions][:, None]
        gradient = self.spans.gradient_bytes[self.spans.positions][:, None]
        rate = self.flow_bytes_per_s
        sending, coming = forward / rate[there][..., None, :], gradient / rate[back][..., None, :]
        trips = 2 * self.latency_s[there][..., None, :] + sending + coming
        if (shared := self.shared_bytes_per_s) is not None:
            sending = np.maximum(sending, forward / shared[there][..., None, :])
            coming = np.maximum(coming, gradient / shared[back][..., None, :])
        return trips, np.maximum(sending, coming)

    def distances(self) -> Floats:
        """[i, j, row]: a hop's round trip, on average over the cuts."""
        forward = float(self.spans.forward_bytes[self.spans.positions].mean())
        gradient = float(self.spans.gradient_bytes[self.spans.positions].mean())
        rate = self.flow_bytes_per_s
        trips = 2 * self.latency_s + forward / rate + gradient / rate.swapaxes(0, 1)
        return np.where(np.isinf(self.speed), FAR, trips)


def costs_of(sites: Sites, spans: SpanCosts, at: Numbers, averaging_per_s: float) -> GroupCosts:
    """Of the groups `at` [node, row]."""
    together = mates(sites, at)
    cases, entry = np.unique(at * (len(at) + 1) + together, return_inverse=True)
    node, shared = np.divmod(cases, len(at) + 1)
    nobody = node == NOBODY
    speed = sites.flops_per_s[node]
    compute, again = (spans.flops_table(recomputes=way)[..., None] / speed for way in (False, True))
    uplinks = _uplinks(sites, spans, node, shared, averaging_per_s)
    idle = np.where(np.eye(len(compute), dtype=bool), 0.0, np.inf)[..., None]
    compute[..., nobody], again[..., nobody], uplinks[..., nobody] = idle, idle, idle
    entry = entry.reshape(at.shape)
    latency, rate = _links(sites, at)
    return GroupCosts(
        spans,
        Tables(compute, again, uplinks, np.where(nobody, np.inf, sites.memory_bytes[node])),
        entry,
        np.where(nobody, np.inf, speed)[entry],
        latency,
        rate,
        shared_rates(sites, at) if (sites.host >= 0).any() else None,
    )


def _uplinks(sites: Sites, spans: SpanCosts, node: Numbers, together: Numbers, averaging_per_s: float) -> Floats:
    """[i, j, entry]: seconds that a span's flows keep the node's uplink, or downlink. `together`: nodes of the group
    on its host.
    """
    forward, gradient = spans.forward_bytes[spans.positions], spans.gradient_bytes[spans.positions]
    averaged = averaging_per_s * spans.parameter_table[..., None] * together
    part = shares(sites, node, together)
    busy: Floats = np.zeros(averaged.shape)
    for flows, rate in (
        (gradient[:, None] + forward, sites.up_bytes_per_s[node] * part),
        (forward[:, None] + gradient, sites.down_bytes_per_s[node] * part),
    ):
        left = rate - averaged
        mine = np.where(together == 1, flows[..., None], 0.0)
        np.maximum(busy, np.where(left > 0, mine / np.where(left > 0, left, 1.0), np.inf), out=busy)
    return busy


def _links(sites: Sites, at: Numbers) -> tuple[Floats, Floats]:
    """Latencies and rates within each row, [node, node, row]; at once and without limit where nobody is."""
    nodes, where = np.unique(at, return_inverse=True)
    latency, rate = sites.between(nodes, nodes)
    nobody = nodes == NOBODY
    latency[nobody], latency[:, nobody], rate[nobody], rate[:, nobody] = 0.0, 0.0, np.inf, np.inf
    where = where.reshape(at.shape)
    return latency[where[:, None], where], rate[where[:, None], where]
