"""What each stage of a run is told before it starts, and the rings of the segments that it holds. Pure.

In: a plan, its job and the captured model. Out: a `StageSetup` for each stage, with its program, its segments, its
threads and its share of the samples, and in each segment the `RingSpec` that says who averages what, in which chunks
and blocks, directly or around the ring. A ring is computed once, by whoever launches the run, because two machines
could come to different shares of equal worth. The module also decides which member of a ring writes the segment into
checkpoints: the one with the fastest uplink.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Protocol

import torch

from cluster_planner import Cluster, Plan, Ring, RingMember, SpanCosts, Stage, largest_fitting_window, links_of_ring
from ravnest.checkpoints.own_copies import StoredCopy
from ravnest.checkpoints.tensor_stream import PIECE_BYTES
from ravnest.driver.imitation import Imitation, device_of, imitated_node, stages_elsewhere
from ravnest.errors import InvalidInput
from ravnest.job.config import Job
from ravnest.pipeline import stage_name
from ravnest.planning.workload import EVALUATION_MICRO_BATCHES, evaluation_batch
from ravnest.splitting import CapturedModel, Initialization, StageProgram, TensorSpec
from ravnest.stage.setup import (
    ComputeResources,
    EvaluationSetup,
    SegmentSetup,
    StageBounds,
    StagePlace,
    StageSetup,
    TransportSetup,
    UserCode,
)
from ravnest.stage.tied import TiedSetup, tied_setups
from ravnest.training.averaging import BufferRule
from ravnest.training.optimizer import expected_updates
from ring_allreduce import RingSpec
from ring_allreduce.ring import RobustRule, Wire, bytes_per_element
from ring_allreduce.transport import Keys
from ring_timing import divide


class Initial(Protocol):
    """Weights of which some can be made from the job's seed, tensor by tensor."""

    def only(self, names: Collection[str]) -> tuple[Initialization, ...]:
        """How those of `names` are made that can be."""
        ...

    def stored(self, names: Collection[str]) -> Mapping[str, StoredCopy]:
        """Where those of `names` lie that files hold."""
        ...


@dataclass(frozen=True)
class TiedCopies:
    """Tied parameters that the same stages use: `names`, of so many `elements` together, in the stages `members`."""

    members: tuple[RingMember, ...]
    names: tuple[str, ...]
    elements: int


def tied_copies(clusters: Mapping[str, Sequence[StageProgram]]) -> list[TiedCopies]:
    """The tied parameters that several stages hold copies of. Frozen ones are left out: they need no averaging.

    `clusters` gives by name the programs of each cluster's stages, in order.
    """
    users: dict[str, list[RingMember]] = {}
    sizes: dict[str, int] = {}
    lent: set[str] = set()
    for cluster, programs in clusters.items():
        for index, program in enumerate(programs):  # a stage borrows only from those before it
            for spec in (*program.parameters, *program.borrowed):
                if spec.requires_grad:
                    users.setdefault(spec.name, []).append((cluster, index))
                    sizes[spec.name] = prod(spec.shape)
            lent |= {spec.name for spec in program.borrowed if spec.requires_grad}
    together: dict[tuple[RingMember, ...], list[str]] = {}
    for name, members in users.items():
        if name in lent:
            together.setdefault(tuple(members), []).append(name)
    return [TiedCopies(who, tuple(names), sum(sizes[name] for name in names)) for who, names in together.items()]


MARGIN = 2.0
"""The factor by which a buffer is larger than what the link holds."""
SPARE_BYTES = 64 << 10
"""What is added to that. A full buffer takes more only once a third of it is free, and packets count with their
overhead; a buffer of little more than the link holds would leave it idle between two fillings."""


def in_flight(plan: Plan, node: str) -> dict[str, int]:
    """How many bytes may be on their way to each stage of another node, by its name: rate × round trip (jitter
    included), with a margin. Only links that were measured are bounded."""
    fleet = plan.fleet
    measured = {end for link in fleet.links if node in (link.a, link.b) for end in (link.a, link.b)}
    bounds = {}
    for name, other in stages_elsewhere(plan, node):
        if other in measured and not fleet.same_host(node, other):
            link = fleet.link(node, other)
            round_trip_s = 2 * (link.latency_s + link.jitter_s)
            bounds[name] = int(MARGIN * fleet.flow_bytes_per_s(node, other) * round_trip_s) + SPARE_BYTES
    return bounds


_HEADER_ALLOWANCE_BYTES = 1 << 20


def check_fingerprint(plan: Plan, captured: CapturedModel, plan_path: Path) -> None:
    """Raises InvalidInput when the job's factories now make another model than the one that was planned."""
    if plan.costs.fingerprint != captured.costs.fingerprint:
        raise InvalidInput(
            "the model that the job makes is not the one that was planned (its graph or shapes differ): plan again",
            path=str(plan_path),
            key="fingerprint",
        )


def evaluating_cluster(plan: Plan) -> Cluster:
    """The cluster that evaluates: the fastest by the plan's prediction."""
    rates = [predicted.samples_per_s for predicted in plan.predicted.clusters]
    return plan.clusters[rates.index(max(rates))]


def units_run_apart(
    captured: CapturedModel, spans: SpanCosts, stage: Stage, place: tuple[int, int], window: int
) -> tuple[StageProgram, ...]:
    """The units of a stage that recomputes one of them at a time; empty for any other. `place`: its number, and how
    many stages there are."""
    if not (stage.recomputes and spans.recomputes_unit_by_unit(*stage.units, place, window)):
        return ()
    return tuple(captured.span(unit, unit + 1) for unit in range(*stage.units))


def stage_setups(
    plan: Plan,
    job: Job,
    captured: CapturedModel,
    *,
    search_dirs: Sequence[Path],
    threads: Mapping[str, int],
    total_samples: int | None,
    token: bytes,
    keys: Mapping[str, Keys] | None = None,
    imitate: Imitation | None = None,
    timeline: bool = False,
    initial: Initial | None = None,
    shares: Mapping[str, tuple[float, float]] | None = None,
) -> dict[str, StageSetup]:
    """The setup of every stage, by name.

    Arguments:
        search_dirs: the folders in which the user's code is looked for.
        threads: torch threads, by node name.
        total_samples: samples of the fleet at which the job ends; None where it is not known.
        token: the secret of the run, by which its messages are recognised.
        keys: of an encrypted run, by stage.
        imitate: which of the plan's machines are imitated; None imitates nothing.
        timeline: each stage reports its timeline.
        initial: the weights that a new run starts from, which stages make themselves as far as they can; None where all
            are sent.
        shares: by cluster, its share of the data, where a run goes on with it. A cluster that is not in it has come
            since: it reads as much as it is fast, in an order of its own. None: shares are those of the plan.
    """
    programs = {
        stage_name(cluster.name, index): captured.span(*stage.units)
        for cluster in plan.clusters
        for index, stage in enumerate(cluster.stages)
    }
    weights = {name: {spec.name for spec in program.weight_specs} for name, program in programs.items()}
    limit = _largest_message_bytes(plan, programs.values())
    by_cluster = {
        cluster.name: [programs[stage_name(cluster.name, index)] for index in range(len(cluster.stages))]
        for cluster in plan.clusters
    }
    copied = dict(enumerate(tied_copies(by_cluster), len(plan.rings))) if job.tied == "averaged" else {}
    apart = {name for each in copied.values() for name in each.names}
    setups = {}
    spans = SpanCosts(plan.costs, plan.workload)
    for cluster in plan.clusters:
        share, order = plan.share(cluster.name), ""
        if shares is not None and cluster.name in shares:
            share = shares[cluster.name]
        elif shares is not None:
            share, order = (0.0, share[1] - share[0]), cluster.name
        largest = largest_fitting_window(
            plan.fleet, spans, cluster.stages, plan.workload.largest_window, cluster.window
        )
        tied = [TiedSetup()] * len(cluster.stages) if copied else tied_setups(by_cluster[cluster.name])
        for index, stage in enumerate(cluster.stages):
            place = (index, len(cluster.stages))
            name, imitated = stage_name(cluster.name, index), imitated_node(plan, stage, spans, imitate)
            setups[name] = StageSetup(
                place=StagePlace(cluster.name, index, len(cluster.stages)),
                bounds=StageBounds(
                    window=cluster.window,
                    largest_window=max(cluster.window, largest),
                    share=share,
                    order=order,
                    total_updates=None
                    if total_samples is None
                    else expected_updates(total_samples * (share[1] - share[0]), job.micro_batch, job.update_every),
                    room_to_split=0
                    if stage.recomputes
                    else spans.room_to_split(
                        *stage.units,
                        place,
                        max(cluster.window, largest),
                        plan.fleet.node(stage.node).room_bytes,
                    ),
                    recomputes=stage.recomputes,
                ),
                evaluation=EvaluationSetup(evaluation_batch(job, captured), captured.batch_is_dynamic),
                job=job,
                code=UserCode(plan.job_file, tuple(str(path) for path in search_dirs)),
                program=programs[name],
                units=units_run_apart(captured, spans, stage, place, cluster.window),
                segments=(
                    *(
                        _segment(plan, job, plan.ring_of(units), (cluster.name, index), captured, apart)
                        for units in plan.stage_segments(cluster.name, index)
                    ),
                    *(
                        _copies_segment(plan, job, ring, each, (cluster.name, index))
                        for ring, each in copied.items()
                        if (cluster.name, index) in each.members
                    ),
                ),
                machine=ComputeResources(threads[stage.node], device_of(plan, stage, imitate)),
                transport=TransportSetup(
                    token=token,
                    max_message_bytes=limit,
                    keys=None if keys is None else keys[name],
                    in_flight_bytes=in_flight(plan, stage.node),
                ),
                imitated=imitated,
                tied=tied[index],
                timeline=timeline,
                initial=() if initial is None else initial.only(weights[name]),
                stored={} if initial is None else initial.stored(weights[name]),
            )
    return setups


def _segment(
    plan: Plan, job: Job, ring: Ring, stage: RingMember, captured: CapturedModel, apart: Collection[str]
) -> SegmentSetup:
    """What the stage is told of a segment. The tied parameters in `apart` have a ring of their own."""
    program = captured.span(*ring.units)
    # Only persistent buffers learn. The others are constants of the model, which every stage has already.
    learning = [spec for spec in program.buffers if spec.persistent]
    trained = [spec for spec in program.parameters if spec.requires_grad and spec.name not in apart]
    buffers: dict[BufferRule, list[TensorSpec]] = {"average": [], "first": [], "local": []}
    counters = []
    for spec in learning:
        if spec.dtype.is_floating_point:
            buffers[job.averaging.rule_of(spec.name)].append(spec)
        elif job.averaging.keeps_own(spec.name):
            buffers["local"].append(spec)
        else:
            counters.append(spec)
    return SegmentSetup(
        ring=plan.rings.index(ring),
        parameters=tuple(spec.name for spec in trained),
        buffers=tuple(spec.name for spec in buffers["average"]),
        counters=tuple(spec.name for spec in counters),
        frozen=tuple(spec.name for spec in program.parameters if not spec.requires_grad),
        progress=progress_ring(plan, ring, _elements(trained), job.averaging.ring_wire, job.averaging.rule),
        averaged_buffers=_buffers_ring(plan, ring, "buffers", buffers["average"], job.averaging.rule),
        keeper=stage == keeper(plan, ring.members),
        taken=tuple(spec.name for spec in buffers["first"]),
        taken_buffers=_buffers_ring(plan, ring, "taken", buffers["first"]),
        local=tuple(spec.name for spec in buffers["local"]),
        constants=(
            *(spec.name for spec in program.buffers if not spec.persistent),
            *(spec.name for spec in program.borrowed if not spec.requires_grad),
        ),
    )


def _copies_segment(plan: Plan, job: Job, ring: int, copied: TiedCopies, stage: RingMember) -> SegmentSetup:
    """Copies of tied parameters, which are averaged as a segment is."""
    return SegmentSetup(
        ring=ring,
        parameters=copied.names,
        buffers=(),
        counters=(),
        frozen=(),
        progress=ring_spec(
            plan, copied.members, str(ring), copied.elements, job.averaging.ring_wire, job.averaging.rule
        ),
        averaged_buffers=None,
        keeper=stage == keeper(plan, copied.members),
        copies=sum(cluster == stage[0] for cluster, _ in copied.members),
    )


def keeper(plan: Plan, members: Sequence[RingMember]) -> RingMember:
    """Which member of a ring sends its segment for checkpoints: the first of those with the fastest uplink."""

    def uplink(member: RingMember) -> float:
        return plan.fleet.node(plan.cluster(member[0]).stages[member[1]].node).up_bytes_per_s

    return max(members, key=uplink)


def _elements(specs: Sequence[TensorSpec]) -> int:
    return sum(math.prod(spec.shape) for spec in specs)


def _largest_message_bytes(plan: Plan, programs: Iterable[StageProgram]) -> int:
    """A bound on one message: twice the largest tensor or boundary that a stage may send, or a piece of its state, and
    room for its header."""
    tensors = [spec.size_bytes for program in programs for spec in (*program.parameters, *program.buffers)]
    boundaries = [
        unit.boundary_bytes * plan.workload.micro_batch * EVALUATION_MICRO_BATCHES for unit in plan.costs.units
    ]
    return 2 * max([*tensors, *boundaries, PIECE_BYTES]) + _HEADER_ALLOWANCE_BYTES


def progress_ring(plan: Plan, ring: Ring, elements: int, wire: Wire, robust: RobustRule | None = None) -> RingSpec:
    """The ring that averages a segment's progress, `elements` float32 numbers."""
    return ring_spec(plan, ring.members, str(plan.rings.index(ring)), elements, wire, robust)


def buffers_ring(
    plan: Plan, ring: Ring, elements: int, kind: str = "buffers", robust: RobustRule | None = None
) -> RingSpec:
    """The ring of a segment's buffers: of those that are averaged, or with `taken` of those that are taken from its
    first member. They travel without compression, because a variance that was rounded beside larger numbers could come
    out below zero.
    """
    return ring_spec(plan, ring.members, f"{plan.rings.index(ring)}.{kind}", elements, "exact", robust)


def _buffers_ring(
    plan: Plan, ring: Ring, kind: str, buffers: Sequence[TensorSpec], robust: RobustRule | None = None
) -> RingSpec | None:
    return buffers_ring(plan, ring, _elements(buffers), kind, robust) if buffers else None


def ring_spec(
    plan: Plan,
    members: Sequence[RingMember],
    name: str,
    elements: int,
    wire: Wire,
    robust: RobustRule | None = None,
) -> RingSpec:
    """The ring in which `members` average `elements` float32 numbers that travel in the form `wire`, by the rule
    `robust`, or their weighted mean."""
    links = links_of_ring(plan.fleet, [plan.cluster(cluster).stages[index].node for cluster, index in members])
    rules = {"each": robust is not None, "hierarchical": plan.workload.hierarchical_averaging}
    division = divide(elements, bytes_per_element(wire), links, **rules)
    names, chunk = tuple(stage_name(*member) for member in members), division.chunk_elements
    ways = division.shares, division.direct, division.groups
    return RingSpec(name, names, elements, chunk, torch.float32, wire, *ways, robust=robust)
