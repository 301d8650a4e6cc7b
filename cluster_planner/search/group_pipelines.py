"""Costs and cheapest pipelines of many groups of nodes at once, as arrays.

It computes for many groups what pipeline/order_and_cuts.py computes for one. Groups of about one size are together:
node by node and row by row (one row a group; rows are the last axis, so that numpy's innermost loops are long), with
NOBODY where a group has fewer nodes. A stage's figures depend on its node, and on how many of its host's nodes are in
the group; so they are tables with one entry for each such case, and rows say which entry is theirs. NOBODY has no
units, at no cost, and is at no distance: it takes no part in a pipeline.

A group has of a host's uplink and downlink as much as it has of the host's nodes, whoever runs the others. That is what
the prediction comes to when clusters that share a host are about as fast as each other.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cluster_planner.inputs.fleet import FleetArrays
from cluster_planner.inputs.spans import Floats, SpanCosts
from cluster_planner.pipeline.order_and_cuts import sets_of

NOBODY = -1


FAR = 1e300
"""A distance that is larger than that of any node. NOBODY is there."""

Numbers = NDArray[np.int64]


def mates(sites: FleetArrays, at: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return [node, row]: how many of the group's nodes are on its host, itself among them."""
    hosts = _hosts(sites, at)
    if (hosts < 0).all():
        return np.ones(at.shape, dtype=np.int64)
    return np.where(hosts < 0, 1, (hosts[:, None] == hosts).sum(axis=1))


def shares(sites: FleetArrays, at: NDArray[np.int64], together: NDArray[np.int64]) -> Floats:
    """Return the part of its host's links that a node has together with its mates. `together`: how many they are, as
    `mates` says, with itself.
    """
    everyone = np.bincount(sites.host[sites.host >= 0], minlength=1)
    hosts = _hosts(sites, at)
    part: Floats = np.where(hosts < 0, 1.0, together / np.maximum(everyone[np.maximum(hosts, 0)], 1))
    return part


def shared_rates(sites: FleetArrays, at: NDArray[np.int64]) -> Floats:
    """Return [i, j, row]: bytes/s from i to j of the part of their hosts' links that the group has; infinite within a
    host.
    """
    hosts, part = _hosts(sites, at), shares(sites, at, mates(sites, at))
    up, down = sites.up_bytes_per_s[at] * part, sites.down_bytes_per_s[at] * part
    apart = (hosts[:, None] != hosts) | (hosts < 0)
    return np.where(apart, np.minimum(up[:, None], down), np.inf)


def _hosts(sites: FleetArrays, at: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.where(at == NOBODY, -1, sites.host[at])


@dataclass(frozen=True)
class EntryTables:
    """Seconds by cut positions and entry, [i, j, entry]: `compute`, recomputing `again`, and `uplinks`.

    `room_bytes` and `host_room_bytes` are those of each entry, endless for nobody.
    """

    compute: Floats
    again: Floats
    uplinks: Floats
    room_bytes: Floats
    host_room_bytes: Floats


@dataclass(frozen=True)
class GroupCosts:
    """The costs of groups, one group a row.

    `entry` and `speed` (FLOP/s; infinite for nobody) are [node, row]. `latency_s`, `flow_bytes_per_s` and
    `shared_bytes_per_s` are [node, node, row]; the last is what the group's part of hosts' links carries, or None
    without hosts.
    """

    spans: SpanCosts
    tables: EntryTables
    entry: Numbers
    speed: Floats
    latency_s: Floats
    flow_bytes_per_s: Floats
    shared_bytes_per_s: Floats | None

    def of(self, rows: NDArray[np.bool_]) -> "GroupCosts":
        """Return the costs of these rows only. `rows`: a mask."""
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
        """Return [row]: the FLOP/s of the fastest node."""
        fastest: Floats = np.where(np.isinf(self.speed), 0.0, self.speed).max(axis=0)
        return fastest

    def fits(self, window: int) -> NDArray[np.bool_]:
        """Return [way, i, j, entry] as `SpanCosts.ways_that_fit` does, with `window` micro-batches in flight."""
        rooms = self.tables.room_bytes, self.tables.host_room_bytes
        return self.spans.ways_that_fit(*rooms, window).transpose(0, 2, 3, 1)

    def stages(self, fits: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Return (seconds of computing, seconds until the next micro-batch), [i, j, entry]."""
        compute = np.where(fits[0], self.tables.compute, np.where(fits[1], self.tables.again, np.inf))
        return compute, np.maximum(compute, self.tables.uplinks)

    def hops(self, before: Numbers, after: Numbers) -> tuple[Floats, Floats]:
        """Return (seconds of a round trip, of the longer way) from nodes to nodes, [..., position, row]. `before` and
        `after` (…, row, or 1 for all rows): which nodes of each group.
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
        """Return [i, j, row]: a hop's round trip, on average over the cuts."""
        forward = float(self.spans.forward_bytes[self.spans.positions].mean())
        gradient = float(self.spans.gradient_bytes[self.spans.positions].mean())
        rate = self.flow_bytes_per_s
        trips = 2 * self.latency_s + forward / rate + gradient / rate.swapaxes(0, 1)
        return np.where(np.isinf(self.speed), FAR, trips)


def costs_of(sites: FleetArrays, spans: SpanCosts, at: Numbers, averaging_per_s: float) -> GroupCosts:
    """Return the costs of the groups `at` [node, row], whose nodes are given by number."""
    together = mates(sites, at)
    cases, entry = np.unique(at * (len(at) + 1) + together, return_inverse=True)
    node, shared = np.divmod(cases, len(at) + 1)
    nobody = node == NOBODY
    speed = sites.flops_per_s[node]
    compute, again = (
        _with_reading(spans, spans.flops_table(recomputes=way)[..., None] / speed) for way in (False, True)
    )
    uplinks = _uplinks(sites, spans, node, shared, averaging_per_s)
    idle = np.where(np.eye(len(compute), dtype=bool), 0.0, np.inf)[..., None]
    compute[..., nobody], again[..., nobody], uplinks[..., nobody] = idle, idle, idle
    entry = entry.reshape(at.shape)
    latency, rate = _links(sites, at)
    return GroupCosts(
        spans,
        EntryTables(
            compute,
            again,
            uplinks,
            *(np.where(nobody, np.inf, room[node]) for room in (sites.room_bytes, sites.host_room_bytes)),
        ),
        entry,
        np.where(nobody, np.inf, speed)[entry],
        latency,
        rate,
        shared_rates(sites, at) if (sites.host >= 0).any() else None,
    )


def _with_reading(spans: SpanCosts, compute_s: Floats) -> Floats:
    """Seconds [i, j, entry] with what reading data takes."""
    if spans.workload.reading_s == 0:
        return compute_s
    return np.ascontiguousarray(np.moveaxis(spans.table_with_reading(np.moveaxis(compute_s, -1, 0)), 0, -1))


def _uplinks(sites: FleetArrays, spans: SpanCosts, node: Numbers, together: Numbers, averaging_per_s: float) -> Floats:
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


def _links(sites: FleetArrays, at: Numbers) -> tuple[Floats, Floats]:
    """Latencies and rates within each row, [node, node, row]; at once and without limit where nobody is."""
    nodes, where = np.unique(at, return_inverse=True)
    latency, rate = sites.between(nodes, nodes)
    nobody = nodes == NOBODY
    latency[nobody], latency[:, nobody], rate[nobody], rate[:, nobody] = 0.0, 0.0, np.inf, np.inf
    where = where.reshape(at.shape)
    return latency[where[:, None], where], rate[where[:, None], where]


@dataclass(frozen=True)
class CheapestPipelines:
    """The least cost in each row, and the nodes that run stages then, as bits; −1 stands for all."""

    cost: Floats
    used: NDArray[np.int64]


def chains(distance: Floats, alone_s: Floats) -> NDArray[np.int64]:
    """Return [step, row]: each row's nodes in the order of a nearest-neighbour tour that starts with its slowest.

    `distance` has shape (nodes, nodes, rows), `alone_s` (nodes, rows).
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


def in_order(stages: Iterable[Floats], hop: Floats, combine: np.ufunc) -> CheapestPipelines:
    """Return the cheapest pipelines of all nodes in their order.

    `stages` yields (P, P, rows) of one node after the other, which is written over; `hop` (nodes − 1, P, rows) leads to
    the next.
    """
    given = iter(stages)
    best = next(given)[0].copy()
    for onward, stage in zip(hop, given, strict=True):
        combine(stage, combine(best, onward)[:, None], out=stage)
        np.minimum.reduce(stage, axis=0, out=best)
    return CheapestPipelines(best[-1], np.full(best.shape[1], -1))


def over_subsets(stage: Floats, hop: Floats, combine: np.ufunc, least: int) -> CheapestPipelines:
    """Search every row at once as order_and_cuts.py's exact search does for one.

    `stage` has shape (nodes, P, P, rows), `hop` (nodes, nodes, P, rows).
    """
    nodes, positions, _, rows = stage.shape
    best = np.full((1 << nodes, nodes, positions, rows), np.inf)
    for node in range(nodes):
        best[1 << node, node] = stage[node, 0]
    cost, answer = np.full(rows, np.inf), np.zeros(rows, dtype=np.int64)
    for size in range(1, nodes + 1):
        used, others = sets_of(nodes, size)
        for node in range(nodes) if size > 1 else ():
            before = used[node] ^ (1 << node)
            reach = combine(best[before[:, None], others[node]], hop[others[node], node]).min(axis=1)
            best[used[node], node] = combine(reach[:, :, None], stage[node]).min(axis=1)
        if size >= least:
            ends = best[used, np.arange(nodes)[:, None], -1].reshape(-1, rows)
            at = ends.argmin(axis=0)
            found = ends[at, np.arange(rows)]
            better = found < cost
            cost[better], answer[better] = found[better], used.reshape(-1)[at[better]]
    return CheapestPipelines(cost, answer)
