"""What is told of where clusters are started anew, and of nodes that come, become slow, or stand in for others.

In: orders of ravnest/recovery, and nodes. Out: events, which are described with all others in report.py.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cluster_planner import Node
from ravnest.driver.instructions import RecordProgressHandedOn
from ravnest.pipeline import stage_name
from ravnest.recovery import StartCluster


@dataclass(frozen=True)
class ClusterReplannedEvent:
    """A lost cluster is started otherwise than it was, for this `reason`: on "spares", or with "other cuts" (`how`).

    `nodes` and `units` say by stage where it runs and what it holds. As predicted, the change takes `change_s` seconds,
    and the cluster makes `gained` samples more in the rest of the run; None where the run has no known end.
    """

    cluster: str
    how: str
    nodes: Mapping[str, str]
    units: Mapping[str, tuple[int, int]]
    reason: str
    change_s: float
    gained: int | None


@dataclass(frozen=True)
class NodeJoinedEvent:
    """A `node` may run stages from now on, as a spare at first, by these figures.

    `known` says whether the plan had it already; `why`, in words, that the clock lets it in.
    """

    node: str
    known: bool
    flops_per_s: float
    memory_bytes: int
    up_bytes_per_s: float
    down_bytes_per_s: float
    why: str = ""


@dataclass(frozen=True)
class NodeSlowEvent:
    """For a minute the `node` of `stage` has taken so many `times` as long to compute as before; 1: it does not now."""

    node: str
    stage: str
    times: float


@dataclass(frozen=True)
class PlannedAnewEvent:
    """All clusters end, saved, and the run begins again by another plan, for this `reason`.

    As predicted, nobody trains for `pause_s` seconds, and the run makes `gained` samples more by its end, the pause
    counted; None where it has no known end.
    """

    reason: str
    pause_s: float
    gained: int | None


@dataclass(frozen=True)
class SpareWarmEvent:
    """The spare `node` holds the anchor of `stage` and follows its rings: it takes its place at once when it is lost.

    `donors` have given it so many bytes, by stage, within so many `seconds`.
    """

    node: str
    stage: str
    donors: Mapping[str, int]
    seconds: float


@dataclass(frozen=True)
class NodesSharedOutEvent:
    """A lost `cluster` cannot be made, for this `reason`. Its living `nodes` are spares of the others until it can."""

    cluster: str
    nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class ProgressHandedOnEvent:
    """A `cluster` that leaves has handed on to the cluster `to` what it has made and no round has: so many `samples`.

    They are in the next round to which that one contributes.
    """

    cluster: str
    to: str
    samples: int


def handed_on(said: RecordProgressHandedOn) -> ProgressHandedOnEvent:
    """The event of a cluster that leaves and has handed on what it has made."""
    return ProgressHandedOnEvent(said.cluster, said.to, said.samples)


def replanned(order: StartCluster) -> ClusterReplannedEvent:
    """The event of an order to start a cluster otherwise than it was."""
    placed, stages = order.placement, order.plan.cluster(order.cluster).stages
    gained = placed.gained(order.rest_s)
    return ClusterReplannedEvent(
        order.cluster,
        placed.how,
        {stage_name(order.cluster, i): stage.node for i, stage in enumerate(stages)},
        {stage_name(order.cluster, i): stage.units for i, stage in enumerate(stages)},
        order.reason,
        placed.change_s,
        round(gained) if math.isfinite(gained) else None,
    )


def joined(node: Node, *, known: bool, why: str = "") -> NodeJoinedEvent:
    """The event of a node that may run stages from now on; `known`: the plan had it before."""
    what = node.flops_per_s, node.memory_bytes, node.up_bytes_per_s, node.down_bytes_per_s
    return NodeJoinedEvent(node.name, known, *what, why)
