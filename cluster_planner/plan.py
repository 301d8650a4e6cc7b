"""The plan: who runs what, who averages with whom, what is expected of it, and whether it is valid.

A plan is complete in itself: it carries the fleet, the costs and the workload that it was made for, and the job, which
is opaque here. `validate` checks what a plan.yaml may get wrong when it is edited by hand; `require_memory` checks that
nodes have memory for their stages. `common_refinement` gives the segments: a segment begins and ends wherever any
cluster has a cut, so every cluster holds it in one stage and it can be averaged by itself.
"""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from cluster_planner.errors import InvalidInput
from cluster_planner.inputs.constraints import LAST
from cluster_planner.inputs.fleet import CUDA_HOST_BYTES, Fleet
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts


def common_refinement(clusters: Sequence[Sequence[tuple[int, int]]]) -> tuple[tuple[int, int], ...]:
    """Return the largest spans that lie inside one stage in every cluster.

    `clusters`: for each cluster its stages' half-open spans, which cover the same units, in order.
    """
    edges = sorted({edge for spans in clusters for span in spans for edge in span})
    return tuple(itertools.pairwise(edges))


def holder(spans: Sequence[tuple[int, int]], segment: tuple[int, int]) -> int:
    """Return the index of the stage (of one cluster's `spans`) that holds the segment."""
    for index, (start, end) in enumerate(spans):
        if start <= segment[0] and segment[1] <= end:
            return index
    raise ValueError(f"no span of {list(spans)} holds {segment}")


CLUSTER_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")
"""The names that a cluster may have. Files in a run's folder are named after it, so that no name may be a path."""

CLUSTER_NAME_EXPECTED = "must be a name of at most 32 letters, digits, - and _"


@dataclass(frozen=True)
class Stage:
    """The contiguous, half-open span of units that one node runs."""

    node: str
    units: tuple[int, int]
    recomputes: bool = False
    """Whether it forgets its activations, and runs each forward again for the backward."""


@dataclass(frozen=True)
class Cluster:
    """Nodes that together hold one replica of the model. `window`: micro-batches in flight to start with."""

    name: str
    window: int
    stages: tuple[Stage, ...]


@dataclass(frozen=True)
class Ring:
    """The stages, one per cluster, that hold the segment `units`, as (cluster name, stage index) in passing
    order.
    """

    units: tuple[int, int]
    members: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Spare:
    """A node that runs no stage, and why. `shadows`: the stages, as (cluster name, stage index), of which it is the
    warm spare: it follows their rings, and takes the place of one that is lost.
    """

    node: str
    reason: str
    shadows: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class StagePrediction:
    """Seconds per micro-batch, and memory. `up_s` and `down_s` include the averaging's share, and no latency."""

    compute_s: float
    up_s: float
    down_s: float
    occupancy_s: float
    memory_bytes: int


@dataclass(frozen=True)
class ClusterPrediction:
    """`bottleneck_s` is the largest occupancy of a stage or link; `bottleneck` says in words what limits the
    cluster.
    """

    samples_per_s: float
    bottleneck_s: float
    round_trip_s: float
    bottleneck: str
    stages: tuple[StagePrediction, ...]

    def busy(self, stage: StagePrediction, micro_batch: int) -> float:
        """Return the part of the time for which one of this cluster's stages computes, as runs and rehearsals say."""
        return min(1.0, stage.compute_s * self.samples_per_s / micro_batch)


@dataclass(frozen=True)
class Prediction:
    """What the fleet is expected to do. `averaging_s`: how long one round's averaging takes on links it has
    to itself. `loaded_averaging_s`: the same from its opening to its commit while pipelines train on these links; None
    where clusters wait for rounds, and in plans of earlier versions.

    `objective` is Σ samples/s of a cluster × how much its samples count; `efficiency` is objective /
    samples_per_s. `best_possible`: no plan's objective could be above it (upper_bound.py); None where nobody has
    computed it.
    """

    samples_per_s: float
    averaging_s: float
    objective: float
    efficiency: float
    bottleneck: str
    advice: str
    clusters: tuple[ClusterPrediction, ...]
    best_possible: float | None = None
    loaded_averaging_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A whole plan. `job` is plain data, opaque to the planner; `job_file` is where it was read from. `data` says which
    data it was made with, in a few characters; it is empty where that is not known. `min_stages`: the stages of a
    cluster at the least, as they were asked for; who plans anew asks for as many.
    """

    clusters: tuple[Cluster, ...]
    rings: tuple[Ring, ...]
    spares: tuple[Spare, ...]
    predicted: Prediction
    fleet: Fleet
    costs: ModelCosts
    workload: Workload
    job: Mapping[str, object]
    job_file: str
    seed: int
    data: str = ""
    min_stages: int = 1

    @property
    def least_stages(self) -> int:
        """Return the stages of a cluster, at the least, in plans of this fleet: a fleet of one node runs one."""
        return 1 if len(self.fleet.nodes) == 1 else self.min_stages

    def cluster(self, name: str) -> Cluster:
        """Return the cluster of that name. Raises `InvalidInput` for a name nobody has."""
        if name in self._cluster_of:
            return self._cluster_of[name]
        known = ", ".join(cluster.name for cluster in self.clusters)
        raise InvalidInput(f"no cluster is named {name!r}; there are {known}")

    @cached_property
    def _cluster_of(self) -> Mapping[str, Cluster]:
        return {cluster.name: cluster for cluster in self.clusters}

    def stage_segments(self, cluster_name: str, stage_index: int) -> tuple[tuple[int, int], ...]:
        """Return the segments that a stage holds, in the order of the model."""
        start, end = self.cluster(cluster_name).stages[stage_index].units
        return tuple(ring.units for ring in self.rings if start <= ring.units[0] and ring.units[1] <= end)

    def ring_of(self, segment: tuple[int, int]) -> Ring:
        """Return the ring of a segment. Raises `InvalidInput` for a span that is no segment."""
        for ring in self.rings:
            if ring.units == tuple(segment):
                return ring
        raise InvalidInput(f"no ring averages the units {segment[0]} to {segment[1]}")

    def share(self, cluster_name: str) -> tuple[float, float]:
        """Return the part of each epoch's samples that a cluster reads, as [start, end) fractions, by predicted speed.

        Neighbouring clusters' ends are the same number, the first starts at 0.0 and the last ends at 1.0.
        """
        index = self.clusters.index(self.cluster(cluster_name))
        return self._share_ends[index], self._share_ends[index + 1]

    @cached_property
    def _share_ends(self) -> tuple[float, ...]:
        rates = [cluster.samples_per_s for cluster in self.predicted.clusters]
        total = sum(rates)
        return (*(sum(rates[:i]) / total for i in range(len(rates))), 1.0)


def validate(plan: Plan, *, changed: bool = False) -> None:
    """Raise `InvalidInput` (with the key in plan.yaml) unless the plan is one that can run.

    Each cluster has every unit in exactly one stage, in order; no node runs two stages; rings are the common
    refinement of all cuts, with one member per cluster that holds it; each node is in a stage or a spare; the
    prediction matches; constraints are met.

    `changed`: the plan is as a run has it that goes on. Two clusters may name one node then, since one of them is away
    and has given it to the other; and what was demanded of nodes may not be met, since some are gone.
    """
    _check_clusters(plan, changed=changed)
    if not changed:
        _check_constraints(plan)
    _check_rings(plan)
    _check_spares(plan)
    _check_prediction(plan)


def _check_clusters(plan: Plan, *, changed: bool) -> None:
    if not plan.clusters:
        raise InvalidInput("at least one cluster is needed", key="clusters")
    count = len(plan.costs.units)
    known = frozenset(plan.fleet.names)
    names: set[str] = set()
    runs: dict[str, str] = {}
    for i, cluster in enumerate(plan.clusters):
        key = f"clusters[{i}]"
        if CLUSTER_NAME.fullmatch(cluster.name) is None:
            raise InvalidInput(f"{CLUSTER_NAME_EXPECTED}, not {cluster.name[:80]!r}", key=f"{key}.name")
        if cluster.name in names:
            raise InvalidInput(f"must be a name no other cluster has, not {cluster.name!r}", key=f"{key}.name")
        names.add(cluster.name)
        largest = plan.workload.largest_window
        if plan.workload.is_synchronous and cluster.window != plan.workload.held(len(cluster.stages), 0):
            raise InvalidInput(
                f"schedule {plan.workload.schedule} keeps {plan.workload.held(len(cluster.stages), 0)} micro-batches"
                f" in flight, not {cluster.window}",
                key=f"{key}.window",
            )
        if not 1 <= cluster.window <= largest:
            raise InvalidInput(
                f"must be from 1 to {largest} ((max_staleness + 1) · update_every), not {cluster.window}",
                key=f"{key}.window",
            )
        at = 0
        for s, stage in enumerate(cluster.stages):
            where = f"{key}.stages[{s}]"
            if stage.node not in known:
                there = ", ".join(plan.fleet.names)
                raise InvalidInput(f"no node is named {stage.node!r}; there are {there}", key=f"{where}.node")
            if stage.node in runs and not changed:
                raise InvalidInput(f"{stage.node!r} already runs {runs[stage.node]}", key=f"{where}.node")
            runs[stage.node] = where
            start, end = stage.units
            if start != at or not start < end <= count:
                raise InvalidInput(
                    f"must start at {at}, where the stage before ends, and end after it, at {count} at most; "
                    f"not [{start}, {end}]",
                    key=f"{where}.units",
                )
            at = end
        if at != count:
            raise InvalidInput(f"the stages end at unit {at}, but the model has {count}", key=f"{key}.stages")


def _check_constraints(plan: Plan) -> None:
    demanded = plan.fleet.constraints
    if len(plan.clusters) < demanded.min_clusters:
        raise InvalidInput(
            f"there are {len(plan.clusters)}, and constraints.min_clusters demands {demanded.min_clusters}",
            key="clusters",
        )
    number_of = {name: i for i, name in enumerate(plan.fleet.names)}
    place_of = {stage.node: (c, s) for c in plan.clusters for s, stage in enumerate(c.stages)}
    for i, cluster in enumerate(plan.clusters):
        if said := plan.fleet.rules.broken([number_of[stage.node] for stage in cluster.stages]):
            raise InvalidInput(said, key=f"clusters[{i}].stages")
    for i, pin in enumerate(demanded.pins):
        if pin.node not in place_of:
            raise InvalidInput(f"no stage runs on {pin.node!r}, and constraints.pin[{i}] demands one", key="clusters")
        cluster, at = place_of[pin.node]
        wanted = len(cluster.stages) - 1 if pin.stage == LAST else pin.stage
        if pin.cluster not in (None, cluster.name) or wanted not in (None, at):
            raise InvalidInput(
                f"{pin.node!r} runs stage {at} of {cluster.name!r}, which is not where constraints.pin[{i}] has it",
                key="clusters",
            )


def _check_rings(plan: Plan) -> None:
    segments = common_refinement([[stage.units for stage in cluster.stages] for cluster in plan.clusters])
    spans = tuple(ring.units for ring in plan.rings)
    # A run keeps its segments where a cluster that is cut anew has made some cut needless: rings may be finer.
    edges = {edge for span in spans for edge in span}
    if not spans or spans != common_refinement([spans]) or not {edge for each in segments for edge in each} <= edges:
        wanted = ", ".join(f"[{a}, {b}]" for a, b in segments)
        raise InvalidInput(f"must be one ring per segment, in order: {wanted}", key="rings")
    names = sorted(cluster.name for cluster in plan.clusters)
    for i, ring in enumerate(plan.rings):
        key = f"rings[{i}].members"
        if sorted(name for name, _ in ring.members) != names:
            raise InvalidInput(f"must be one stage of each cluster ({', '.join(names)})", key=key)
        for name, index in ring.members:
            stages = plan.cluster(name).stages
            if not 0 <= index < len(stages):
                raise InvalidInput(f"{name} has no stage {index}, it has {len(stages)}", key=key)
            start, end = stages[index].units
            if not (start <= ring.units[0] and ring.units[1] <= end):
                raise InvalidInput(f"stage {index} of {name} does not hold units {list(ring.units)}", key=key)


def _check_spares(plan: Plan) -> None:
    known = frozenset(plan.fleet.names)
    running = {stage.node for cluster in plan.clusters for stage in cluster.stages}
    for i, spare in enumerate(plan.spares):
        if spare.node not in known:
            there = ", ".join(plan.fleet.names)
            raise InvalidInput(f"no node is named {spare.node!r}; there are {there}", key=f"spares[{i}].node")
        if spare.node in running:
            raise InvalidInput(f"{spare.node!r} runs a stage or is named twice", key=f"spares[{i}].node")
        running.add(spare.node)
    _check_shadows(plan)
    for i, name in enumerate(plan.fleet.names):
        if name not in running:
            raise InvalidInput(f"{name!r} is neither in a stage nor a spare", key=f"nodes[{i}].name")


def _check_shadows(plan: Plan) -> None:
    clusters = {cluster.name: cluster for cluster in plan.clusters}
    shadowed: dict[tuple[str, int], str] = {}
    for i, spare in enumerate(plan.spares):
        for j, (name, index) in enumerate(spare.shadows):
            key = f"spares[{i}].shadows[{j}]"
            if name not in clusters:
                raise InvalidInput(f"no cluster is named {name!r}; there are {', '.join(clusters)}", key=key)
            count = len(clusters[name].stages)
            if not 0 <= index < count:
                raise InvalidInput(f"{name} has no stage {index}, it has {count}", key=key)
            if (name, index) in shadowed:
                raise InvalidInput(f"{shadowed[name, index]!r} shadows stage {index} of {name} already", key=key)
            shadowed[name, index] = spare.node


def _check_prediction(plan: Plan) -> None:
    predicted = plan.predicted.clusters
    if [len(c.stages) for c in predicted] != [len(c.stages) for c in plan.clusters]:
        raise InvalidInput("must have one entry per cluster, and in it one per stage", key="predicted.clusters")
    for i, cluster in enumerate(predicted):
        if not cluster.samples_per_s > 0:
            raise InvalidInput("must be above 0", key=f"predicted.clusters[{i}].samples_per_s")


def require_memory(plan: Plan) -> None:
    """Raise `InvalidInput`, with the key in plan.yaml, for the first stage that needs more bytes than its node has."""
    spans = SpanCosts(plan.costs, plan.workload)
    for cluster in plan.clusters:
        for index, stage in enumerate(cluster.stages):
            place = index, len(cluster.stages)
            need = spans.stage_memory_bytes(*stage.units, place, cluster.window, recomputes=stage.recomputes)
            node = plan.fleet.node(stage.node)
            need, has = need + node.beyond_bytes, node.memory_bytes
            if need > has:
                raise InvalidInput(
                    f"is {has / 1e9:g}, but stage {index} of {cluster.name} (units {list(stage.units)}, window "
                    f"{cluster.window}) needs {_enough_gb(need):g} GB there: plan again, or undo the change",
                    key=f"nodes[{stage.node}].memory_gb",
                )
            need = spans.stage_host_bytes(*stage.units, place, cluster.window)
            if need > node.host_room_bytes:
                raise InvalidInput(
                    f"is {(node.host_memory_bytes or 0) / 1e9:g}, but stage {index} of {cluster.name} needs"
                    f" {_enough_gb(need + CUDA_HOST_BYTES):g} GB of its machine's own memory: plan again, or undo the"
                    " change",
                    key=f"nodes[{stage.node}].host_memory_gb",
                )


def _enough_gb(need_bytes: int) -> float:
    """GB rounded up to three figures."""
    step = 10.0 ** max(0, math.floor(math.log10(need_bytes)) - 2)
    return math.ceil(need_bytes / step) * step / 1e9
