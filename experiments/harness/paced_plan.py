"""Plans of clusters of equal stages on imitated nodes and links: the stated time for a forward, one kind of link.

The planner is left out on purpose: what is asked is what the runtime makes of a given site. Used by the experiments
that measure a pipeline without owning the machines.
"""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from cluster_planner import (
    Cluster,
    ClusterPrediction,
    Fleet,
    Link,
    Node,
    Plan,
    Prediction,
    Ring,
    Stage,
    StagePrediction,
    validate,
)
from ravnest.driver.imitation import Imitation
from ravnest.driver.stage_setups import stage_setups
from ravnest.job.config import Job
from ravnest.job.materials import search_dirs
from ravnest.planning.workload import workload
from ravnest.splitting import CapturedModel
from ravnest.stage.setup import StageSetup
from ring_allreduce.transport import LinkShape

BACKWARD_OVER_FORWARD = 2


def round_trip_window(stages: int, forward_s: float, boundary_bytes: int, link: LinkShape) -> int:
    """Micro-batches in flight that a round trip needs, and two (design §4)."""
    each_s = (1 + BACKWARD_OVER_FORWARD) * forward_s
    trip_s = stages * each_s + 2 * (stages - 1) * (link.latency_s + boundary_bytes / link.bytes_per_s)
    return math.ceil(trip_s / each_s) + 2


def equal_stages(
    job: Job,
    job_file: Path,
    captured: CapturedModel,
    *,
    clusters: int,
    stages: int,
    forward_s: float,
    link: LinkShape,
    window: int,
) -> Plan:
    """`forward_s`: of each stage for one micro-batch, the backward twice that; the units are divided by their number.

    `link`: between each two nodes, and the rate of every node's own way up and down.
    """
    count = len(captured.units)
    spans = list(pairwise(count * index // stages for index in range(stages + 1)))
    nodes, made = [], []
    for cluster in range(clusters):
        names = [f"n{cluster}{index}" for index in range(stages)]
        for name, (start, stop) in zip(names, spans, strict=True):
            flops = sum(unit.flops for unit in captured.costs.units[start:stop]) * job.micro_batch
            rate = link.bytes_per_s
            nodes.append(
                Node(
                    name=name,
                    flops_per_s=flops / forward_s,
                    memory_bytes=10**10,
                    up_bytes_per_s=rate,
                    down_bytes_per_s=rate,
                )
            )
        placed = tuple(Stage(name, span) for name, span in zip(names, spans, strict=True))
        made.append(Cluster(f"c{cluster}", min(window, workload(job).largest_window), placed))
    names = [node.name for node in nodes]
    links = tuple(Link(a, b, link.latency_s, link.bytes_per_s) for i, a in enumerate(names) for b in names[i + 1 :])
    each_s = (1 + BACKWARD_OVER_FORWARD) * forward_s
    samples_per_s = job.micro_batch / each_s
    stage = StagePrediction(each_s, 0.0, 0.0, each_s, 0)
    each = ClusterPrediction(samples_per_s, each_s, 1.0, "compute", (stage,) * stages)
    total = clusters * samples_per_s
    plan = Plan(
        clusters=tuple(made),
        rings=tuple(Ring(span, tuple((c.name, index) for c in made)) for index, span in enumerate(spans)),
        spares=(),
        predicted=Prediction(total, 1.0, total, 1.0, "compute", "", (each,) * clusters),
        fleet=Fleet(tuple(nodes), links, ()),
        costs=captured.costs,
        workload=workload(job),
        job=job.model_dump(mode="json"),
        job_file=str(job_file),
        seed=0,
    )
    validate(plan)
    return plan


def endless_setups(
    plan: Plan, job: Job, captured: CapturedModel, token: bytes, *, imitate: Imitation | None
) -> dict[str, StageSetup]:
    """The stages' setups, of one thread each, for a run that the experiment ends. `imitate`: what of the plan's
    machines; None: nothing. Updates take what they take here: the plan's estimate is of larger models."""
    setups = stage_setups(
        plan,
        job,
        captured,
        search_dirs=search_dirs(plan.job_file),
        threads={node.name: 1 for node in plan.fleet.nodes},
        total_samples=None,
        token=token,
        imitate=imitate,
    )
    return {
        name: setup
        if setup.imitated.pace is None
        else replace(setup, imitated=replace(setup.imitated, pace=replace(setup.imitated.pace, update_s=0.0)))
        for name, setup in setups.items()
    }
