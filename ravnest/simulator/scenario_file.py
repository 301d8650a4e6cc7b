"""scenario.yaml: the shape of the file, and how it becomes a `Scenario`.

Decides which keys exist. What their values may be, `Scenario` says.
"""

from __future__ import annotations

import os
from typing import Annotated, ClassVar

from pydantic import Field

from cluster_planner import AtLeastZero, Positive, Strict, Text, read_validated
from ravnest.errors import naming
from ravnest.simulator.scenario import CONTROL_LATENCY_S, BandwidthChange, Scenario, Stall, StallRate

_MS = 1e-3


class _StallEntry(Strict):
    node: Text
    at_s: AtLeastZero
    for_s: Positive


class _StallRateEntry(Strict):
    per_hour: Positive
    for_s: Positive
    nodes: Annotated[list[Text], Field(min_length=1)] | None = None


class _BandwidthEntry(Strict):
    at_s: AtLeastZero
    up: Positive = 1.0
    down: Positive = 1.0
    nodes: Annotated[list[Text], Field(min_length=1)] | None = None


class _ScenarioFile(Strict):
    FILE: ClassVar[str] = "a scenario"

    compute_jitter: AtLeastZero = 0.0
    link_jitter_ms: AtLeastZero = 0.0
    control_latency_ms: AtLeastZero = CONTROL_LATENCY_S / _MS
    stalls: list[_StallEntry] = Field(default_factory=list)
    stall_rates: list[_StallRateEntry] = Field(default_factory=list)
    bandwidth: list[_BandwidthEntry] = Field(default_factory=list)


def load_scenario(path: str | os.PathLike[str]) -> Scenario:
    """The scenario of a file. Raises `InvalidInput`, which names the file, the key and what was expected."""
    entry = read_validated(path, _ScenarioFile)
    with naming(path):
        return Scenario(
            compute_jitter=entry.compute_jitter,
            link_jitter_s=entry.link_jitter_ms * _MS,
            control_latency_s=entry.control_latency_ms * _MS,
            stalls=tuple(Stall(each.node, each.at_s, each.for_s) for each in entry.stalls),
            stall_rates=tuple(StallRate(e.per_hour, e.for_s, tuple(e.nodes or ())) for e in entry.stall_rates),
            bandwidth=tuple(BandwidthChange(e.at_s, e.up, e.down, tuple(e.nodes or ())) for e in entry.bandwidth),
        )
