"""What a virtual run needs to know of a fleet: durations, bytes, links and rings; no tensors, no machines.

Given explicitly, or read off a plan (fleet_of_plan.py). A stage is named as in a real run, as in "c0.s1". A link is
one-way and belongs to one pair of stages; a node's uplink and downlink are shared by all that it sends and receives.
Where no node is named for a stage, its links are all there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster_planner import Schedule, SplitBackward
from ravnest.pipeline import stage_name
from ring_allreduce.transport import LinkShape

INSTANT = LinkShape(bytes_per_s=float("inf"), latency_s=0.0)
PARAMETER_BYTES = 4


@dataclass(frozen=True)
class VirtualStage:
    """How long one stage computes, and what it sends, per micro-batch (update, snapshot, merge: each
    time)."""

    forward_s: float
    backward_s: float
    update_s: float = 0.0
    snapshot_s: float = 0.0
    merge_s: float = 0.0
    activation_bytes: int = 0
    """To the next stage."""
    gradient_bytes: int = 0
    """To the previous stage."""
    input_gradients_s: float = 0.0
    """The parts of a split backward."""
    weight_gradients_s: float = 0.0
    room: int | None = None
    """StageShape's, where backwards may be split. None: as much as is in flight at most, and one split backward."""


@dataclass(frozen=True)
class VirtualNode:
    """What all stages on one machine share."""

    up_bytes_per_s: float
    down_bytes_per_s: float


@dataclass(frozen=True)
class VirtualCluster:
    name: str
    window: int
    stages: tuple[VirtualStage, ...]
    largest_window: int | None = None
    """Up to which it is tuned while running; None: the fleet's."""

    def stage_names(self) -> tuple[str, ...]:
        return tuple(stage_name(self.name, index) for index in range(len(self.stages)))


@dataclass(frozen=True)
class VirtualRing:
    """`members`: stage names in passing order. `elements`: length of the averaged vector."""

    members: tuple[str, ...]
    elements: int
    chunk_elements: int
    element_bytes: float = PARAMETER_BYTES
    shares: tuple[float, ...] | None = None
    """The part of the vector in each member's block; None: equal blocks."""
    direct: bool = False
    """Everyone sends its part to everyone."""


@dataclass(frozen=True, kw_only=True)
class VirtualFleet:
    clusters: tuple[VirtualCluster, ...]
    update_every: int
    max_staleness: int
    rings: tuple[VirtualRing, ...] = ()
    """Without rings there are no rounds."""
    average_every: int = 1
    """Samples of the whole fleet that make one round."""
    max_lag: int = 1
    micro_batch: int = 1
    """Samples."""
    clip: bool = False
    links: Mapping[tuple[str, str], LinkShape] = field(default_factory=dict)
    """From one stage to another."""
    nodes: Mapping[str, VirtualNode] = field(default_factory=dict)
    node_of: Mapping[str, str] = field(default_factory=dict)
    """Stage → name in `nodes`."""
    schedule: Schedule = "async"
    split_backward: SplitBackward = "never"
    default_link: LinkShape = INSTANT
    """For pairs that `links` does not name."""
    later_link: tuple[float, LinkShape] | None = None
    """From this moment on, `default_link` is another."""
    largest_window: int | None = None
    """Up to which windows are tuned while running; None: they stay."""
    control_latency_s: float = 0.0
    """One way between the driver and any stage."""
