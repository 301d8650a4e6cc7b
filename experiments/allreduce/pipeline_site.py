"""The plan of the pipeline experiment: two clusters of two equal stages, whose computing is paced.

Every process makes the same setups from it, so none has to be sent. The window is the design's: the round trip over the
bottleneck, and two (design §4).
"""

import math
from dataclasses import dataclass, replace
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
from experiments.allreduce.pipeline_model import LAYERS, WIDTH
from ravnest.job import JobConfig, job_from_mapping
from ravnest.launch.setups import stage_setups
from ravnest.materials import capture_job, load_data, search_dirs
from ravnest.runtime.setup import StageSetup
from ravnest.splitting import CapturedModel
from ravnest.workload import workload

JOB_FILE = Path(__file__).with_name("pipeline_model.py")
CLUSTERS, STAGES = 2, 2
MBPS, ONE_WAY_S = 20.0, 0.02
MICRO_BATCH, UPDATE_EVERY = 64, 4
FORWARD_S = 0.05
MICRO_BATCH_S = 3 * FORWARD_S
SEGMENT_BYTES = LAYERS // STAGES * (WIDTH * WIDTH + WIDTH) * 4
BOUNDARY_BYTES = MICRO_BATCH * WIDTH * 4
TOKEN = b"pipeline-tests!!"


@dataclass(frozen=True)
class Site:
    """All that the processes need."""

    plan: Plan
    job: JobConfig
    setups: dict[str, StageSetup]


def average_every(load: float) -> int:
    """Samples of the fleet between rounds, so that averaging takes `load` of what the pipeline leaves of an uplink."""
    free = MBPS * 1e6 / 8 - BOUNDARY_BYTES / MICRO_BATCH_S
    every_s = SEGMENT_BYTES / (free * load)  # a ring of two sends each member's vector once
    return max(1, round(every_s * CLUSTERS * MICRO_BATCH / MICRO_BATCH_S))


def window() -> int:
    """Micro-batches in flight that a round trip needs, and two."""
    sending_s = BOUNDARY_BYTES / (MBPS * 1e6 / 8)
    round_trip_s = STAGES * MICRO_BATCH_S + 2 * (STAGES - 1) * (ONE_WAY_S + sending_s)
    return math.ceil(round_trip_s / MICRO_BATCH_S) + 2


def build(load: float, *, emulated: bool) -> Site:
    """`emulated`: with the transport's links; otherwise the network itself is shaped."""
    job = job_from_mapping(
        {
            "model": {"factory": "pipeline_model:stack"},
            "data": {"factory": "pipeline_model:noise"},
            "loss": "mse",
            "micro_batch": MICRO_BATCH,
            "update_every": UPDATE_EVERY,
            "optimizer": {"name": "sgd", "lr": 1e-3},
            "average_every": average_every(load),
            "max_lag": 2,
            "stop": {"samples": 10**9},
            "evaluate_every": 10**9,
        },
    )
    data = load_data(job, JOB_FILE)
    captured = capture_job(job, JOB_FILE, data)
    plan = _plan(job, captured)
    setups = stage_setups(
        plan,
        job,
        captured,
        search_dirs=search_dirs(JOB_FILE),
        threads={node.name: 1 for node in plan.fleet.nodes},
        total_samples=None,
        token=TOKEN,
        imitate=True,
    )
    if not emulated:
        setups = {name: replace(setup, links={}) for name, setup in setups.items()}
    return Site(plan, job, setups)


def _plan(job: JobConfig, captured: CapturedModel) -> Plan:
    count = len(captured.units)
    edges = [count * index // STAGES for index in range(STAGES + 1)]
    spans = list(pairwise(edges))
    rate = MBPS * 1e6 / 8
    nodes, clusters = [], []
    for cluster in range(CLUSTERS):
        names = [f"n{cluster}{index}" for index in range(STAGES)]
        for name, (start, stop) in zip(names, spans, strict=True):
            flops = sum(unit.flops for unit in captured.costs.units[start:stop]) * MICRO_BATCH
            nodes.append(
                Node(
                    name=name,
                    flops_per_s=flops / FORWARD_S,
                    memory_bytes=10**10,
                    up_bytes_per_s=rate,
                    down_bytes_per_s=rate,
                )
            )
        stages = tuple(Stage(name, span) for name, span in zip(names, spans, strict=True))
        clusters.append(Cluster(f"c{cluster}", min(window(), workload(job).largest_window), stages))
    names = [node.name for node in nodes]
    links = tuple(Link(a, b, ONE_WAY_S, rate) for i, a in enumerate(names) for b in names[i + 1 :])
    samples_per_s = MICRO_BATCH / MICRO_BATCH_S
    stage = StagePrediction(MICRO_BATCH_S, 0.0, 0.0, MICRO_BATCH_S, 0)
    each = ClusterPrediction(samples_per_s, MICRO_BATCH_S, 1.0, "compute", (stage,) * STAGES)
    plan = Plan(
        clusters=tuple(clusters),
        rings=tuple(Ring(span, tuple((c.name, index) for c in clusters)) for index, span in enumerate(spans)),
        spares=(),
        predicted=Prediction(
            CLUSTERS * samples_per_s, 1.0, CLUSTERS * samples_per_s, 1.0, "compute", "", (each,) * CLUSTERS
        ),
        fleet=Fleet(tuple(nodes), links, ()),
        costs=captured.costs,
        workload=workload(job),
        job=job.model_dump(mode="json"),
        job_file=str(JOB_FILE),
        seed=0,
    )
    validate(plan)
    return plan
