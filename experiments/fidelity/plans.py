"""From a site to a plan: the nodes' speeds from the time that their stages are to take, and the planner's prediction.

The planner's search is left out on purpose: clusters, order and cuts are the site's. What a plan predicts, its windows
and its rings are the planner's own.
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path

from cluster_planner import (
    Cluster,
    Fleet,
    Link,
    ModelCosts,
    Node,
    Plan,
    Ring,
    SpanCosts,
    Stage,
    bottleneck_s,
    common_refinement,
    loads_of,
    predict,
    round_trip_s,
    validate,
    wanted_window,
)
from experiments.fidelity.sites import LAYERS, Site
from experiments.harness import paced_model
from ravnest.job.config import Job, job_from_mapping
from ravnest.job.materials import capture_job, load_data
from ravnest.planning.workload import workload
from ravnest.splitting import CapturedModel

HOST_OCTET = 1
NETWORK = "10.77.0"
"""wanlab's: the node of number i has the address NETWORK.(i + 1)."""
MEMORY_BYTES = 4 * 10**9
BITS_PER_MBIT = 1e6
ROUND_EVERY_ROUNDS = 3.0
"""A round opens no more often than this many times what one takes on idle links: a backlog would take minutes to show
what it comes to, and a run is to show it in seconds."""


def job_folder(folder: Path) -> Path:
    """Write the job's code into `folder`; the path of a job file there."""
    shutil.copyfile(str(paced_model.__file__), folder / "paced_model.py")
    return folder / "job.yaml"


def plan_of(site: Site, job_file: Path) -> Plan:
    """The plan, with the planner's prediction. `job_file` lies beside a copy of experiments/harness/paced_model.py."""
    captured = paced_units(job_file)
    alone = _plan(site, _job(site, 10**9), captured, job_file).predicted
    every_s = max(site.round_every_s, ROUND_EVERY_ROUNDS * alone.averaging_s)
    return _plan(site, _job(site, max(1, round(alone.samples_per_s * every_s))), captured, job_file)


@cache
def paced_units(job_file: Path) -> CapturedModel:
    """The job's model of LAYERS equal layers, captured."""
    job = job_from_mapping(_mapping())
    return capture_job(job, job_file, load_data(job, job_file))


def _mapping() -> dict[str, object]:
    return {
        "model": {"factory": "paced_model:stack", "args": {"layers": LAYERS}},
        "data": {"factory": "paced_model:noise"},
        "loss": "mse",
        "micro_batch": paced_model.MICRO_BATCH,
        "optimizer": {"name": "sgd", "lr": 1e-3},
        "split_backward": "never",
        "max_lag": 2,
        "evaluate_every": 10**9,
        "stop": {"samples": 10**9},
    }


def paced_job(update_every: int, max_staleness: int, average_every: int) -> Job:
    """A job that goes on until it is ended."""
    changes = {"update_every": update_every, "max_staleness": max_staleness, "average_every": average_every}
    return job_from_mapping({**_mapping(), **changes})


def _job(site: Site, average_every: int) -> Job:
    return paced_job(site.update_every, site.max_staleness, average_every)


def _plan(site: Site, job: Job, captured: CapturedModel, job_file: Path) -> Plan:
    units = len(captured.units)
    costs = captured.costs
    spans = SpanCosts(costs, workload(job))
    at = {node.name: tuple(units * layer // LAYERS for layer in node.layers) for node in site.nodes}
    fleet = Fleet(
        tuple(
            Node(
                name=node.name,
                # A forward and a backward are three forwards.
                flops_per_s=3 * spans.forward_flops(*at[node.name]) / node.step_s,
                memory_bytes=MEMORY_BYTES,
                up_bytes_per_s=node.up_mbps * BITS_PER_MBIT / 8,
                down_bytes_per_s=node.down_mbps * BITS_PER_MBIT / 8,
                address=f"{NETWORK}.{index + HOST_OCTET}",
            )
            for index, node in enumerate(site.nodes)
        ),
        tuple(
            Link(site.nodes[a].name, site.nodes[b].name, ms / 1e3, 1e9 / 8)
            for (a, b), ms in sorted(site.one_way_ms.items())
        ),
        (),
    )
    pipelines = [
        tuple(Stage(node.name, at[node.name]) for node in site.nodes if node.cluster == number)
        for number in range(site.clusters)
    ]
    return plan_by_hand(fleet, pipelines, costs, job, job_file)


def plan_by_hand(
    fleet: Fleet, pipelines: Sequence[tuple[Stage, ...]], costs: ModelCosts, job: Job, job_file: Path
) -> Plan:
    """A plan of these clusters. Windows, rings and the prediction are the planner's. `job_file` need not be there."""
    work = workload(job)
    spans = SpanCosts(costs, work)
    clusters = []
    for number, stages in enumerate(pipelines):
        slowest = bottleneck_s(fleet, stages, loads_of(fleet, spans, stages), 0.0)
        window = wanted_window(slowest, round_trip_s(fleet, spans, stages), work)
        clusters.append(Cluster(f"c{number}", window, stages))
    segments = common_refinement([[stage.units for stage in cluster.stages] for cluster in clusters])
    rings = tuple(Ring(segment, _members(clusters, segment)) for segment in segments)
    plan = Plan(
        clusters=tuple(clusters),
        rings=rings,
        spares=(),
        predicted=replace(predict(fleet, spans, clusters, rings).prediction, advice="none was asked for"),
        fleet=fleet,
        costs=costs,
        workload=work,
        job=job.model_dump(mode="json"),
        job_file=str(job_file),
        seed=0,
    )
    validate(plan)
    return plan


def _members(clusters: list[Cluster], segment: tuple[int, int]) -> tuple[tuple[str, int], ...]:
    return tuple(
        (cluster.name, index)
        for cluster in clusters
        for index, stage in enumerate(cluster.stages)
        if stage.units[0] <= segment[0] and segment[1] <= stage.units[1]
    )


def pairs(site: Site) -> list[tuple[str, str, float]]:
    """(node, node, one-way delay in seconds) of each pair."""
    names = [node.name for node in site.nodes]
    numbers = combinations(range(len(names)), 2)
    return [(names[a], names[b], site.one_way_ms[a, b] / 1e3) for a, b in numbers]
