"""A fleet as arrays: speeds, memory, uplinks, and the links between any nodes given by number.

Decides nothing: it says what Fleet.link and Fleet.flow_bytes_per_s say, for many pairs at once. What regions and hosts
tell is looked up in tables; a pair that may have been measured, or that has to be estimated, asks the fleet. Up to
DENSE_NODES nodes all pairs are kept.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cluster_planner.inputs.fleet import (
    DEFAULT_LATENCY_S,
    DEFAULT_REGION_LATENCY_S,
    HOST_BYTES_PER_S,
    HOST_LATENCY_S,
    Fleet,
)
from cluster_planner.inputs.spans import Floats

DENSE_NODES = 600

Numbers = Sequence[int] | NDArray[np.int64]


class Sites:
    """Row i of every array is `fleet.nodes[i]`."""

    def __init__(self, fleet: Fleet) -> None:
        nodes = fleet.nodes
        self._fleet = fleet
        self.number_of = {node.name: i for i, node in enumerate(nodes)}
        self.flops_per_s = np.array([node.flops_per_s for node in nodes])
        self.memory_bytes = np.array([node.memory_bytes for node in nodes], dtype=np.float64)
        self.up_bytes_per_s = np.array([node.up_bytes_per_s for node in nodes])
        self.down_bytes_per_s = np.array([node.down_bytes_per_s for node in nodes])
        self.host = _numbered([node.host for node in nodes])
        """Which nodes share an uplink: equal numbers; −1 for a node by itself."""
        self._region = _numbered([node.region for node in nodes])
        self._latency, self._rate = self._by_region()
        linked = {name for link in fleet.links for name in (link.a, link.b)}
        joined = {region for link in fleet.regions for region in (link.a, link.b)}
        self._linked = np.array([node.name in linked for node in nodes])
        self._known = self._linked | np.array([node.region in joined for node in nodes])

    def between(self, rows: Numbers, columns: Numbers) -> tuple[Floats, Floats]:
        """(one-way latency, the most that one flow from row to column carries), shapes (rows, columns). A node reaches
        itself at once.
        """
        rows, columns = np.asarray(rows, dtype=np.int64), np.asarray(columns, dtype=np.int64)
        if len(self.host) > DENSE_NODES:
            return self._between(rows, columns)
        latency, flow = self._all
        at = np.ix_(rows, columns)
        return latency[at], flow[at]

    @cached_property
    def _all(self) -> tuple[Floats, Floats]:
        everyone = np.arange(len(self.host))
        return self._between(everyone, everyone)

    def _between(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> tuple[Floats, Floats]:
        at = np.ix_(self._region[rows], self._region[columns])
        latency, rate = self._latency[at], self._rate[at]
        mates = (self.host[rows][:, None] == self.host[columns]) & (self.host[rows] >= 0)[:, None]
        latency[mates], rate[mates] = HOST_LATENCY_S, HOST_BYTES_PER_S
        measured = self._linked[rows][:, None] & self._linked[columns]
        ends = self._known[rows][:, None] & self._known[columns]
        near = (self._region[rows][:, None] == self._region[columns]) & (self._region[rows] >= 0)[:, None]
        unknown = np.isnan(latency)
        default = np.where(near, DEFAULT_REGION_LATENCY_S, DEFAULT_LATENCY_S)
        latency, rate = np.where(unknown, default, latency), np.where(unknown, np.inf, rate)
        for i, j in np.argwhere(measured | (unknown & ends)).tolist():
            if rows[i] != columns[j]:
                link = self._fleet.link(self._fleet.nodes[rows[i]].name, self._fleet.nodes[columns[j]].name)
                latency[i, j], rate[i, j] = link.latency_s, link.bytes_per_s
        ways = np.minimum(self.up_bytes_per_s[rows][:, None], self.down_bytes_per_s[columns])
        flow = np.where(mates, rate, np.minimum(rate, ways))
        same = rows[:, None] == columns
        return np.where(same, 0.0, latency), np.where(same, np.inf, flow)

    def _by_region(self) -> tuple[Floats, Floats]:
        """[region, region] of what pairs of regions state; NaN where they do not. The last row is for no region."""
        number_of = {node.region: number for node, number in zip(self._fleet.nodes, self._region, strict=True)}
        count = max(number_of.values()) + 2
        latency, rate = np.full((count, count), np.nan), np.full((count, count), np.nan)
        for link in self._fleet.regions:
            for a, b in ((link.a, link.b), (link.b, link.a)):
                latency[number_of[a], number_of[b]] = link.latency_s
                rate[number_of[a], number_of[b]] = link.bytes_per_s
        return latency, rate


def _numbered(words: Sequence[str | None]) -> NDArray[np.int64]:
    numbers: dict[str | None, int] = {None: -1}
    return np.array([numbers.setdefault(word, len(numbers) - 1) for word in words])
