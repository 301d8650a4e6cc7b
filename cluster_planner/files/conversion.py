"""Conversion between the entries of nodes.yaml and plan.yaml and the planner's objects, units included.

A value that was read from a file is written as a number that reads back as the same value, bit for bit (`_stated`).
Values that no number in the file's unit maps to, which only a fleet built in code can have, come back within one part
in 10^15.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace

from cluster_planner import plan as nouns
from cluster_planner.errors import InvalidInput
from cluster_planner.files import schema
from cluster_planner.inputs.constraints import (
    ALL_DAY,
    UNCONSTRAINED,
    Constraints,
    Pin,
    did_you_mean,
    hours_from,
    hours_to,
)
from cluster_planner.inputs.fleet import Fleet, Node, NodeData
from cluster_planner.inputs.links import Link, RegionLink
from cluster_planner.inputs.model_costs import ModelCosts, Unit, Workload


def bytes_per_s_of_mbps(mbps: float) -> float:
    return mbps * 125_000.0


def flops_per_s_of_gflops(gflops: float) -> float:
    return gflops * 1e9


def seconds_of_ms(ms: float) -> float:
    return ms / 1e3


def seconds_of_hours(hours: float) -> float:
    return hours * 3600.0


def bytes_of_gb(gb: float) -> int:
    return max(1, round(gb * 1e9))


def fleet_from(entry: schema.FleetFile | schema.PlanFile) -> Fleet:
    """Return the fleet of a nodes.yaml or plan.yaml.

    Raises `InvalidInput` with the key where entries contradict each other.
    """
    names = [node.name for node in entry.nodes]
    for i, cap in enumerate(entry.constraints.cap):
        if cap.node not in names:
            raise InvalidInput(
                f"no node is named {cap.node!r}{did_you_mean(cap.node, names)}", key=f"constraints.cap[{i}].node"
            )
        if cap.memory_gb is None and cap.up_mbps is None:
            raise InvalidInput("needs memory_gb, up_mbps, or both", key=f"constraints.cap[{i}]")
    return Fleet(
        nodes=tuple(_capped(_node(node), entry.constraints.cap) for node in entry.nodes),
        links=tuple(Link(*link.between, *_link(link)) for link in entry.links),
        regions=tuple(RegionLink(*link.between, *_link(link)) for link in entry.regions),
        constraints=Constraints(
            min_clusters=entry.constraints.min_clusters,
            forbid=tuple(entry.constraints.forbid),
            groups=tuple((name, tuple(nodes)) for name, nodes in entry.constraints.groups.items()),
            apart=tuple(entry.constraints.apart),
            pins=tuple(Pin(pin.node, pin.cluster, pin.stage) for pin in entry.constraints.pin),
        ),
        flops_per_byte=entry.flops_per_byte,
    )


def plan_from(entry: schema.PlanFile) -> nouns.Plan:
    """Return the plan of a plan.yaml, not yet validated as a whole."""
    predicted = entry.predicted
    return nouns.Plan(
        clusters=tuple(
            nouns.Cluster(c.name, c.window, tuple(nouns.Stage(s.node, s.units, s.recomputes) for s in c.stages))
            for c in entry.clusters
        ),
        rings=tuple(nouns.Ring(ring.units, tuple(ring.members)) for ring in entry.rings),
        spares=tuple(nouns.Spare(spare.node, spare.reason, tuple(spare.shadows)) for spare in entry.spares),
        predicted=nouns.Prediction(
            **predicted.model_dump(exclude={"clusters"}),
            clusters=tuple(
                nouns.ClusterPrediction(
                    **c.model_dump(exclude={"stages"}),
                    stages=tuple(nouns.StagePrediction(**s.model_dump()) for s in c.stages),
                )
                for c in predicted.clusters
            ),
        ),
        fleet=fleet_from(entry),
        costs=ModelCosts(
            tuple(Unit(**{**unit.model_dump(), "shared": tuple(unit.shared)}) for unit in entry.units),
            entry.fingerprint,
        ),
        workload=Workload(**entry.workload.model_dump()),
        job=entry.job,
        job_file=entry.job_file,
        seed=entry.seed,
        data=entry.data,
        min_stages=entry.min_stages,
    )


def plan_to(plan: nouns.Plan) -> dict[str, object]:
    """Return the plan as plain data, with keys in the order of the file."""
    return {
        "version": 1,
        "job_file": plan.job_file,
        "seed": plan.seed,
        "clusters": [
            {
                "name": cluster.name,
                "window": cluster.window,
                "stages": [_stage_to(stage) for stage in cluster.stages],
            }
            for cluster in plan.clusters
        ],
        "rings": [
            {"units": list(ring.units), "members": [list(member) for member in ring.members]} for ring in plan.rings
        ],
        "spares": [_spare_to(spare) for spare in plan.spares],
        "predicted": _plain(asdict(plan.predicted)),
        "job": dict(plan.job),
        "workload": asdict(plan.workload),
        **({"min_stages": plan.min_stages} if plan.min_stages > 1 else {}),
        **fleet_to(plan.fleet),
        "fingerprint": plan.costs.fingerprint,
        **({"data": plan.data} if plan.data else {}),
        "units": [_plain(asdict(unit)) for unit in plan.costs.units],
    }


def fleet_to(fleet: Fleet) -> dict[str, object]:
    """Return the sections of nodes.yaml as plain data. Caps are not written: the nodes have them applied."""
    given = fleet.constraints
    demands: dict[str, object] = {
        "min_clusters": given.min_clusters,
        "forbid": [list(pair) for pair in given.forbid],
        "groups": {name: list(nodes) for name, nodes in given.groups},
        "apart": [list(pair) for pair in given.apart],
        "pin": [{key: value for key, value in asdict(pin).items() if value is not None} for pin in given.pins],
    }
    return {
        **({} if given == UNCONSTRAINED else {"constraints": demands}),
        **({"flops_per_byte": fleet.flops_per_byte} if fleet.flops_per_byte else {}),
        "nodes": [_node_to(node) for node in fleet.nodes],
        "links": _links_to(fleet.links),
        "regions": _links_to(fleet.regions),
    }


def _spare_to(spare: nouns.Spare) -> dict[str, object]:
    written: dict[str, object] = {"node": spare.node, "reason": spare.reason}
    return written | ({"shadows": [list(of) for of in spare.shadows]} if spare.shadows else {})


def _stage_to(stage: nouns.Stage) -> dict[str, object]:
    entry: dict[str, object] = {"node": stage.node, "units": list(stage.units)}
    return entry | {"recomputes": True} if stage.recomputes else entry


def _node(entry: schema.NodeEntry) -> Node:
    return Node(
        name=entry.name,
        flops_per_s=flops_per_s_of_gflops(entry.stated_gflops),
        memory_bytes=bytes_of_gb(entry.stated_memory_gb),
        process_bytes=None if entry.process_gb is None else bytes_of_gb(entry.process_gb),
        host_memory_bytes=None if entry.host_memory_gb is None else bytes_of_gb(entry.host_memory_gb),
        up_bytes_per_s=bytes_per_s_of_mbps(entry.up_mbps),
        down_bytes_per_s=bytes_per_s_of_mbps(entry.down_mbps),
        host=entry.host,
        device=entry.stated_device,
        address=entry.address,
        region=entry.region,
        mtbf_s=None if entry.mtbf_hours is None else seconds_of_hours(entry.mtbf_hours),
        hours=ALL_DAY if entry.hours is None else hours_from(entry.hours),
        data=None if entry.data is None else NodeData(entry.data.factory, entry.data.args),
    )


def _capped(node: Node, caps: Iterable[schema.CapEntry]) -> Node:
    for cap in caps:
        if cap.node == node.name:
            memory = node.memory_bytes if cap.memory_gb is None else bytes_of_gb(cap.memory_gb)
            up = node.up_bytes_per_s if cap.up_mbps is None else bytes_per_s_of_mbps(cap.up_mbps)
            node = replace(
                node, memory_bytes=min(node.memory_bytes, memory), up_bytes_per_s=min(node.up_bytes_per_s, up)
            )
    return node


def _link(entry: schema.LinkEntry) -> tuple[float, float, float]:
    return seconds_of_ms(entry.latency_ms), bytes_per_s_of_mbps(entry.mbps), seconds_of_ms(entry.jitter_ms)


def _node_to(node: Node) -> dict[str, object]:
    entry: dict[str, object] = {
        "name": node.name,
        "gflops": _stated(flops_per_s_of_gflops, node.flops_per_s, 1e-9),
        "memory_gb": _stated(bytes_of_gb, node.memory_bytes, 1e-9),
        "process_gb": None if node.process_bytes is None else _stated(bytes_of_gb, node.process_bytes, 1e-9),
        "host_memory_gb": None
        if node.host_memory_bytes is None
        else _stated(bytes_of_gb, node.host_memory_bytes, 1e-9),
        "up_mbps": _stated(bytes_per_s_of_mbps, node.up_bytes_per_s, 8e-6),
        "down_mbps": _stated(bytes_per_s_of_mbps, node.down_bytes_per_s, 8e-6),
        "host": node.host,
        "device": node.device,
        "address": node.address,
        "region": node.region,
        "mtbf_hours": None if node.mtbf_s is None else _stated(seconds_of_hours, node.mtbf_s, 1 / 3600),
        "hours": None if node.hours == ALL_DAY else hours_to(node.hours),
        "data": None if node.data is None else _data_to(node.data),
    }
    return {key: value for key, value in entry.items() if value is not None}


def _data_to(data: NodeData) -> dict[str, object]:
    return ({} if data.factory is None else {"factory": data.factory}) | {"args": dict(data.args)}


def _links_to(links: Iterable[Link | RegionLink]) -> list[dict[str, object]]:
    return [
        {
            "between": [link.a, link.b],
            "latency_ms": _stated(seconds_of_ms, link.latency_s, 1e3),
            "mbps": _stated(bytes_per_s_of_mbps, link.bytes_per_s, 8e-6),
            **({"jitter_ms": _stated(seconds_of_ms, link.jitter_s, 1e3)} if link.jitter_s else {}),
        }
        for link in links
    ]


def _stated(convert: Callable[[float], float], value: float, scale: float) -> float:
    """Return the shortest number in the file's unit that `convert` turns into exactly `value`."""
    near = value * scale
    for digits in range(1, 17):
        short = float(f"{near:.{digits}g}")
        if convert(short) == value:
            return short
    below = above = near
    for _ in range(4):
        for candidate in (below, above):
            if convert(candidate) == value:
                return candidate
        below, above = math.nextafter(below, 0.0), math.nextafter(above, math.inf)
    return near


def _plain(value: object) -> object:
    """Turn tuples into lists at every level, because YAML has no tuples."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
