"""The fleet that a simulated run needs: durations, bytes, links and rings, given explicitly or read off a plan.

A stage is named as in a real run: "c0.s1" is stage 1 of cluster c0. A link is one-way and belongs to one pair of
stages; the uplink and the downlink of a node are shared by all that its stages send and receive. A stage for which no
node is named is limited by its links alone.

`fleet_of_plan` takes durations from FLOPs and speeds, bytes from the cuts, and links, uplinks and downlinks from the
plan's fleet. Rings are divided by the rule of a real run (ring_timing.divide), which says which of them exchange
directly, and in which chunks and blocks. Snapshots and merges take no time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise, permutations

from cluster_planner import (
    Cluster,
    Plan,
    RingTraffic,
    Schedule,
    SpanCosts,
    SplitBackward,
    Stage,
    host_key,
    largest_fitting_window,
    links_of_ring,
    ring_traffic,
    work_times,
)
from ravnest.pipeline import spare_name, stage_name
from ring_allreduce.transport import LinkShape
from ring_timing import Groups, divide

_FLOAT_BYTES = 4
INSTANT = LinkShape(bytes_per_s=float("inf"), latency_s=0.0)


@dataclass(frozen=True)
class VirtualStage:
    """How long one stage computes and how much it sends for each micro-batch, update, snapshot and merge."""

    forward_s: float
    backward_s: float
    update_s: float = 0.0
    snapshot_s: float = 0.0
    merge_s: float = 0.0
    activation_bytes: int = 0
    """Sent to the next stage for each micro-batch."""
    gradient_bytes: int = 0
    """Sent to the previous stage for each micro-batch."""
    input_gradients_s: float = 0.0
    """The first part of a split backward."""
    weight_gradients_s: float = 0.0
    """The second part of a split backward."""
    room: int | None = None
    """How many micro-batches the memory has room for where backwards may be split (`StageShape.room`). None: as many
    as are in flight at most, and one split backward."""


@dataclass(frozen=True)
class VirtualNode:
    """A machine: the uplink and the downlink that all stages on it share."""

    up_bytes_per_s: float
    down_bytes_per_s: float


@dataclass(frozen=True)
class VirtualCluster:
    """The stages that together hold one replica of the model, and the window of micro-batches in flight."""

    name: str
    window: int
    stages: tuple[VirtualStage, ...]
    largest_window: int | None = None
    """The window is tuned up to this one while the cluster runs; None: up to the fleet's."""

    def stage_names(self) -> tuple[str, ...]:
        """Return the names of its stages, in order."""
        return tuple(stage_name(self.name, index) for index in range(len(self.stages)))


@dataclass(frozen=True)
class VirtualRing:
    """The stages that average one segment.

    `members` are names of stages, in the order in which they pass chunks on. `elements` is the length of the averaged
    vector, and `element_bytes` what one of its numbers takes on its way.
    """

    members: tuple[str, ...]
    elements: int
    chunk_elements: int
    element_bytes: float
    shares: tuple[float, ...] | None = None
    """The share of the vector in each member's block; None: equal blocks."""
    direct: bool = False
    """Whether every member sends its part to every other, instead of around the ring."""
    groups: tuple[int, ...] | None = None
    """A ring of rings: the places at which its groups begin; None: one ring."""
    each: bool = False
    """Whether a robust average sees each member's part, which takes `direct`."""
    state_bytes: float = 12.0
    """What a member that joins gets for each number: the anchor and the state of the optimizers."""


def equal_blocks(ring: VirtualRing, members: tuple[str, ...]) -> VirtualRing:
    """Return the ring among other members: one ring, in blocks of equal size."""
    return replace(ring, members=members, shares=None, groups=None, direct=ring.direct or len(members) == 2)


@dataclass(frozen=True, kw_only=True)
class VirtualFleet:
    """Everything that a simulated run needs to know: clusters, rings, links, nodes, and the settings of the job."""

    clusters: tuple[VirtualCluster, ...]
    update_every: int
    max_staleness: int
    rings: tuple[VirtualRing, ...] = ()
    """The rings of the segments. Without rings there are no rounds."""
    average_every: int = 1
    """Samples of the whole fleet that make one round."""
    max_lag: int = 1
    """Rounds."""
    micro_batch: int = 1
    """Samples."""
    clip: bool = False
    """Whether updates wait for the norm of the gradients of all stages."""
    links: Mapping[tuple[str, str], LinkShape] = field(default_factory=dict)
    """By (source stage, target stage)."""
    nodes: Mapping[str, VirtualNode] = field(default_factory=dict)
    node_of: Mapping[str, str] = field(default_factory=dict)
    """By stage: the name of its node in `nodes`."""
    schedule: Schedule = "async"
    split_backward: SplitBackward = "never"
    default_link: LinkShape = INSTANT
    """The link of every pair that `links` does not name."""
    other_link: Callable[[str, str], LinkShape] | None = None
    """Gives the link of a pair that `links` does not name, which rings of fewer members may need; None: that is the
    default link."""
    divide_again: Callable[[VirtualRing, tuple[str, ...]], VirtualRing] = equal_blocks
    """Returns a ring among those of its members that are left."""
    later_link: tuple[float, LinkShape] | None = None
    """(moment in seconds, the default link from then on)."""
    largest_window: int | None = None
    """Windows are tuned up to this one while the fleet runs; None: they stay as they are."""
    control_latency_s: float = 0.0
    """How long a message between the driver and any stage takes, one way."""


def fleet_of_plan(
    plan: Plan, *, tuned: bool = False, jitter_s: float = 0.0, control_latency_s: float = 0.0
) -> VirtualFleet:
    """Return the fleet that a plan describes. Each piece of work takes as long as the plan's prediction counts for it.

    Arguments:
        tuned: windows are tuned and backwards are split as in a run; otherwise windows stay as planned.
        jitter_s: each link has at least this jitter.
        control_latency_s: how long a message between the driver and a stage takes, one way.
    """
    node_of = {
        stage_name(cluster.name, index): stage.node
        for cluster in plan.clusters
        for index, stage in enumerate(cluster.stages)
    }
    node_of |= {spare_name(stage_name(*of)): spare.node for spare in plan.spares for of in spare.shadows}
    spans = SpanCosts(plan.costs, plan.workload)
    rings = tuple(_ring(plan, ring, node_of) for ring in ring_traffic(spans, plan.clusters, plan.rings))

    def divide_again(ring: VirtualRing, members: tuple[str, ...]) -> VirtualRing:
        return _divided(plan, members, ring.elements, node_of)

    def other_link(a: str, b: str) -> LinkShape:
        if a not in node_of or b not in node_of:
            return INSTANT  # one of them is lost: what is on its way to it reaches nobody
        return _link(plan, node_of[a], node_of[b], jitter_s)

    most = plan.workload.largest_window if tuned and not plan.workload.is_synchronous else 0
    largest = [
        max(window, largest_fitting_window(plan.fleet, spans, cluster.stages, most, window)) if most else None
        for cluster, window in ((cluster, cluster.window) for cluster in plan.clusters)
    ]
    machines = {name: "/".join(map(str, host_key(plan.fleet, name))) for name in node_of.values()}
    return VirtualFleet(
        clusters=tuple(
            VirtualCluster(cluster.name, cluster.window, _stages(plan, spans, cluster, window), window)
            for cluster, window in zip(plan.clusters, largest, strict=True)
        ),
        rings=rings,
        links=_links(plan, rings, node_of, jitter_s),
        other_link=other_link,
        divide_again=divide_again,
        nodes={machine: _node(plan, name) for name, machine in machines.items()},
        node_of={who: machines[name] for who, name in node_of.items()},
        update_every=plan.workload.update_every,
        max_staleness=plan.workload.max_staleness,
        average_every=plan.workload.average_every,
        max_lag=plan.workload.max_lag,
        micro_batch=plan.workload.micro_batch,
        clip=_clips(plan.job),
        schedule=plan.workload.schedule,
        split_backward="auto" if tuned and plan.workload.splits_backward else "never",
        control_latency_s=control_latency_s,
    )


def _clips(job: Mapping[str, object]) -> bool:
    optimizer = job.get("optimizer")
    return isinstance(optimizer, Mapping) and optimizer.get("clip_norm") is not None


def _node(plan: Plan, name: str) -> VirtualNode:
    node = plan.fleet.node(name)
    return VirtualNode(node.up_bytes_per_s, node.down_bytes_per_s)


def _stages(plan: Plan, spans: SpanCosts, cluster: Cluster, window: int | None) -> tuple[VirtualStage, ...]:
    units, work = plan.costs.units, plan.workload
    stages = []
    for index, stage in enumerate(cluster.stages):
        first, end = stage.units
        stages.append(
            VirtualStage(
                **asdict(work_times(plan.fleet, spans, stage)),
                activation_bytes=work.activation_bytes(units[end - 1]) + work.tied_bytes(units[end - 1]),
                gradient_bytes=work.gradient_bytes(units[first - 1]) + work.tied_bytes(units[first - 1])
                if first
                else 0,
                room=_room(plan, spans, cluster, index, window or cluster.window),
            )
        )
    return tuple(stages)


def _room(plan: Plan, spans: SpanCosts, cluster: Cluster, index: int, window: int) -> int:
    stage = cluster.stages[index]
    if stage.recomputes:
        return 0
    place, memory_bytes = (index, len(cluster.stages)), plan.fleet.node(stage.node).room_bytes
    return spans.room_to_split(*stage.units, place, window, memory_bytes)


def _ring(plan: Plan, ring: RingTraffic, node_of: Mapping[str, str]) -> VirtualRing:
    return _divided(plan, tuple(stage_name(*member) for member in ring.members), ring.elements, node_of)


def _divided(plan: Plan, members: tuple[str, ...], elements: int, node_of: Mapping[str, str]) -> VirtualRing:
    work, number_bytes = plan.workload, plan.workload.averaged_number_bytes
    links = links_of_ring(plan.fleet, [node_of[who] for who in members])
    rules = {"each": work.robust_averaging, "hierarchical": work.hierarchical_averaging}
    division = divide(elements, number_bytes, links, **rules)
    kept = 1 + work.optimizer_state_bytes_per_parameter_byte + work.averaging_state_bytes_per_parameter_byte
    return VirtualRing(
        members,
        elements,
        division.chunk_elements,
        number_bytes,
        division.shares,
        division.direct,
        division.groups,
        each=work.robust_averaging,
        state_bytes=_FLOAT_BYTES * kept,
    )


def _links(
    plan: Plan, rings: Sequence[VirtualRing], node_of: Mapping[str, str], jitter_s: float
) -> dict[tuple[str, str], LinkShape]:
    """Return the links in both directions between neighbours of a cluster, and from each member of a ring to those to
    which it sends.
    """
    pairs: dict[tuple[str, str], None] = {}
    for cluster in plan.clusters:
        for index in range(len(cluster.stages) - 1):
            before, after = stage_name(cluster.name, index), stage_name(cluster.name, index + 1)
            pairs |= {(before, after): None, (after, before): None}
    for ring in rings:
        pairs |= dict.fromkeys(hop for hop in _hops(ring) if hop[0] != hop[1])
    return {pair: _link(plan, node_of[pair[0]], node_of[pair[1]], jitter_s) for pair in pairs}


def _hops(ring: VirtualRing) -> Iterable[tuple[str, str]]:
    """Return who sends to whom in a ring."""
    if ring.direct:
        return permutations(ring.members, 2)
    if ring.groups is None:
        return pairwise([*ring.members, ring.members[0]])
    return [(ring.members[a], ring.members[b]) for a, b in Groups(len(ring.members), ring.groups).traffic(0.0)]


def _link(plan: Plan, a: str, b: str, jitter_s: float) -> LinkShape:
    link = plan.fleet.link(a, b)
    return LinkShape(plan.fleet.flow_bytes_per_s(a, b), link.latency_s, max(jitter_s, link.jitter_s))


def only(plan: Plan, there: Collection[str]) -> Plan:
    """Return the plan with the clusters that are `there`, and their rings."""
    rings = (replace(ring, members=tuple(each for each in ring.members if each[0] in there)) for ring in plan.rings)
    clusters = tuple(each for each in plan.clusters if each.name in there)
    return replace(plan, clusters=clusters, rings=tuple(rings))


def places(clusters: Iterable[Cluster]) -> Iterator[tuple[str, Stage]]:
    """Yields the names of stages, with their places in the plan."""
    return ((stage_name(each.name, index), stage) for each in clusters for index, stage in enumerate(each.stages))
