"""Which of the plan's machines are imitated, and how fast: what each stage is told of its node and its links. Pure.

In: a plan, and an `Imitation`. Out: an `ImitatedNode` for each stage, from the plan's speeds, links and memory sizes.
Deadlines are those of a real run, whatever the speed.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from cluster_planner import Plan, SpanCosts, Stage, WorkTimes, work_times
from ravnest.driver.acting import Acting
from ravnest.errors import InvalidInput
from ravnest.pipeline import spare_name, stage_name
from ravnest.stage.messages import DRIVER
from ravnest.stage.setup import ImitatedNode, MemoryCap
from ring_allreduce.transport import LinkShape, NodeShape


@dataclass(frozen=True)
class Imitation:
    """What is imitated. Raises InvalidInput for a `speed` that is not a finite number above 0."""

    compute: bool = True
    """Pad each stage's work to its node's speed."""
    links: bool = True
    """Rates, latency and jitter of links; uplinks and downlinks of nodes."""
    memory: bool = True
    """A stage that takes more memory than its node has ends the run."""
    speed: float = 1.0
    """Machines and links are imitated so many times as fast as they are."""
    acting: Acting | None = None
    """What becomes of the machines meanwhile, in all sessions of the run; None: they stay."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.speed) and self.speed > 0):
            raise InvalidInput(f"must be a finite number above 0, not {self.speed!r}", key="speed")


def device_of(plan: Plan, stage: Stage, imitation: Imitation | None) -> str:
    """Torch's name of the device on which a stage computes. Imitated computing is done on the processor, whatever the
    node has.
    """
    return "cpu" if imitation is not None and imitation.compute else plan.fleet.node(stage.node).device


def imitated_node(plan: Plan, stage: Stage, spans: SpanCosts, imitation: Imitation | None) -> ImitatedNode:
    """What is imitated of a stage's node: nothing without an `imitation`. `spans`: the span costs of the plan."""
    if imitation is None:
        return ImitatedNode()
    node = plan.fleet.node(stage.node)
    return ImitatedNode(
        links=_links(plan, stage.node, imitation.speed) if imitation.links else {},
        node=_node(plan, stage.node, imitation.speed) if imitation.links else None,
        pace=_pace(plan, stage, spans, imitation.speed) if imitation.compute else None,
        memory=MemoryCap(node.name, node.room_bytes, plan.workload.process_bytes) if imitation.memory else None,
    )


def _links(plan: Plan, node: str, speed: float) -> dict[str, LinkShape]:
    """The links from this node to every stage of another one. The driver is not a node, so no link to it is shaped.

    A flow never goes faster than the receiver's downlink alone would let it, so that messages wait where they are sent.
    There the pipeline still goes first.
    """
    links = {}
    for name, other in stages_elsewhere(plan, node):
        link = plan.fleet.link(node, other)
        rate = plan.fleet.flow_bytes_per_s(node, other)
        links[name] = LinkShape(rate * speed, link.latency_s / speed, link.jitter_s / speed)
    assert DRIVER not in links
    return links


def _node(plan: Plan, node: str, speed: float) -> NodeShape:
    """The stages of one host have equal parts of its uplink and downlink, since each imitates its own by itself."""
    fleet, this = plan.fleet, plan.fleet.node(node)
    others = list(stages_elsewhere(plan, node))
    beyond = [(name, other) for name, other in others if not fleet.same_host(node, other)]
    part = speed / (1 + len(others) - len(beyond))
    arriving = {name: fleet.flow_bytes_per_s(other, node) * speed for name, other in beyond}
    return NodeShape(this.up_bytes_per_s * part, this.down_bytes_per_s * part, arriving)


def stages_elsewhere(plan: Plan, node: str) -> Iterator[tuple[str, str]]:
    """Yields the name and the node of every stage, and of every warm spare, that runs on another node."""
    for cluster in plan.clusters:
        for index, stage in enumerate(cluster.stages):
            if stage.node != node:
                yield stage_name(cluster.name, index), stage.node
    for spare in plan.spares:
        for of in spare.shadows:
            if spare.node != node:
                yield spare_name(stage_name(*of)), spare.node


def _pace(plan: Plan, stage: Stage, spans: SpanCosts, speed: float) -> WorkTimes:
    times = asdict(work_times(plan.fleet, spans, stage))
    return WorkTimes(**{piece: seconds / speed for piece, seconds in times.items()})
