"""What of the plan's machines is imitated here, and how fast: a node's speed and a pair's link, as a stage is told.

Decides how a plan's figures become what a stage pads and shapes. Deadlines stay real, whatever the speed. Pure: knows
no clock and no socket.
"""

import math
from dataclasses import dataclass

from cluster_planner import Plan
from ravnest.errors import InvalidInput
from ravnest.runtime.messages import DRIVER, stage_name
from ravnest.runtime.setup import Pace
from ring_allreduce.transport import LinkShape


@dataclass(frozen=True)
class Imitation:
    """What is imitated. Raises InvalidInput for a `speed` that is no finite number above 0."""

    compute: bool = True
    """Pad each stage's work to its node's speed."""
    links: bool = True
    """Rates, latency and jitter of links; uplinks and downlinks of nodes."""
    memory: bool = True
    """A stage that takes more than its node has ends the run."""
    speed: float = 1.0
    """Everything that is imitated goes so many times as fast."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.speed) and self.speed > 0):
            raise InvalidInput(f"must be a finite number above 0, not {self.speed!r}", key="speed")


def imitated_links(plan: Plan, node: str, imitation: Imitation) -> dict[str, LinkShape]:
    """The imitated link from this node to every other stage. The driver stands beside each: it is no node."""
    links = {}
    for cluster in plan.clusters:
        for index, stage in enumerate(cluster.stages):
            if stage.node != node:
                rate = plan.fleet.flow_bytes_per_s(node, stage.node) * imitation.speed
                latency_s = plan.fleet.link(node, stage.node).latency_s / imitation.speed
                links[stage_name(cluster.name, index)] = LinkShape(rate, latency_s)
    assert DRIVER not in links
    return links


def imitated_pace(plan: Plan, node: str, units: tuple[int, int], imitation: Imitation) -> Pace:
    """How fast this node computes a stage of these units."""
    flops = sum(unit.flops for unit in plan.costs.units[units[0] : units[1]])
    return Pace(plan.fleet.node(node).flops_per_s * imitation.speed, flops)
