"""The virtual fleet that a plan describes: durations from FLOPs and speeds, bytes from cuts, links from the
fleet."""

from __future__ import annotations

from itertools import pairwise

from cluster_planner.circuits import Circuit, circuits
from cluster_planner.plan import Cluster, ClusterPrediction, Plan
from cluster_planner.spans import SpanCosts
from ravnest.pipeline.virtual_fleet import (
    PARAMETER_BYTES,
    VirtualCluster,
    VirtualFleet,
    VirtualRing,
    VirtualStage,
)
from ring_allreduce.chunks import chunk_elements_for
from ring_allreduce.transport.emulation import LinkShape

MOST_CHUNKS_PER_BLOCK = 8
"""More would make a round dearer to simulate and hardly change its time: the ring is pipelined by then."""


def fleet_of_plan(plan: Plan) -> VirtualFleet:
    """A backward takes two forwards; an update takes what the plan's prediction leaves beyond these."""
    rings = circuits(SpanCosts(plan.costs, plan.workload), plan.clusters, plan.rings)
    return VirtualFleet(
        clusters=tuple(
            VirtualCluster(cluster.name, cluster.window, _stages(plan, cluster, predicted))
            for cluster, predicted in zip(plan.clusters, plan.predicted.clusters, strict=True)
        ),
        rings=tuple(_ring(plan, ring) for ring in rings),
        links=_links(plan, rings),
        update_every=plan.workload.update_every,
        max_staleness=plan.workload.max_staleness,
        average_every=plan.workload.average_every,
        max_lag=plan.workload.max_lag,
        micro_batch=plan.workload.micro_batch,
        schedule=plan.workload.schedule,
    )


def _stages(plan: Plan, cluster: Cluster, predicted: ClusterPrediction) -> tuple[VirtualStage, ...]:
    units, work = plan.costs.units, plan.workload
    stages = []
    for stage, expected in zip(cluster.stages, predicted.stages, strict=True):
        first, end = stage.units
        flops = sum(unit.flops for unit in units[first:end]) * work.micro_batch
        forward_s = flops / plan.fleet.node(stage.node).flops_per_s
        stages.append(
            VirtualStage(
                forward_s=forward_s,
                backward_s=(2 + stage.recomputes) * forward_s,
                input_gradients_s=(1 + stage.recomputes) * forward_s,
                weight_gradients_s=forward_s,
                update_s=max(0.0, (expected.compute_s - (3 + stage.recomputes) * forward_s) * work.update_every),
                activation_bytes=work.activation_bytes(units[end - 1]) + work.tied_bytes(units[end - 1]),
                gradient_bytes=work.gradient_bytes(units[first - 1]) + work.tied_bytes(units[first - 1])
                if first
                else 0,
            )
        )
    return tuple(stages)


def _ring(plan: Plan, ring: Circuit) -> VirtualRing:
    elements = ring.parameter_bytes // PARAMETER_BYTES
    nodes = [plan.cluster(cluster).stages[index].node for cluster, index in ring.members]
    rates = [plan.fleet.flow_bytes_per_s(a, b) for a, b in pairwise([*nodes, nodes[0]]) if a != b]
    chunk_elements = chunk_elements_for(min(rates, default=None), PARAMETER_BYTES)
    least = -(-elements // (len(nodes) * MOST_CHUNKS_PER_BLOCK))
    members = tuple(f"{cluster}.{index}" for cluster, index in ring.members)
    return VirtualRing(members, elements, max(chunk_elements, least))


def _links(plan: Plan, rings: list[Circuit]) -> dict[tuple[str, str], LinkShape]:
    """Each way between neighbours in a cluster, and from each member of a ring to the next."""
    node_of = {
        f"{cluster.name}.{index}": stage.node for cluster in plan.clusters for index, stage in enumerate(cluster.stages)
    }
    pairs: set[tuple[str, str]] = set()
    for cluster in plan.clusters:
        for index in range(len(cluster.stages) - 1):
            before, after = f"{cluster.name}.{index}", f"{cluster.name}.{index + 1}"
            pairs |= {(before, after), (after, before)}
    for ring in rings:
        members = [f"{cluster}.{index}" for cluster, index in ring.members]
        pairs |= set(pairwise([*members, members[0]])) if len(members) > 1 else set()
    return {
        (a, b): LinkShape(
            bytes_per_s=plan.fleet.flow_bytes_per_s(node_of[a], node_of[b]),
            latency_s=plan.fleet.link(node_of[a], node_of[b]).latency_s,
        )
        for a, b in sorted(pairs)
    }
