"""Plans with given cuts, and local runs of them, for tests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cluster_planner import (
    Cluster,
    ClusterPrediction,
    Fleet,
    Node,
    Plan,
    Prediction,
    Ring,
    Stage,
    StagePrediction,
    validate,
)
from cluster_planner.segments import common_refinement
from ravnest.cli.planning import workload
from ravnest.job import JobConfig, job_from_mapping
from ravnest.launch.driver import run_control
from ravnest.launch.handout import StageState
from ravnest.launch.local import LocalRun
from ravnest.launch.setups import stage_setups
from ravnest.materials import capture_job, load_data, make_weights, search_dirs
from ravnest.splitting import CapturedModel

JOB_FILE = Path(__file__).parent / "jobs" / "job.yaml"


def tiny_job(**changes: Any) -> JobConfig:
    """A job on the tiny GPT; `changes` replace its keys."""
    job: dict[str, Any] = {
        "model": {"factory": "tiny:gpt"},
        "data": {"factory": "tiny:words"},
        "micro_batch": 4,
        "update_every": 3,
        "optimizer": {"name": "adamw", "lr": 1e-2},
        "average_every": 48,
        "stop": {"samples": 240},
        "evaluate_every": 100_000,
        "seed": 3,
    }
    return job_from_mapping({**job, **changes})


def plan_with(job: JobConfig, captured: CapturedModel, cuts: Sequence[Sequence[int]], window: int = 64) -> Plan:
    """One cluster per list of cuts (unit numbers strictly inside the model)."""
    count = len(captured.units)
    clusters, nodes, predictions = [], [], []
    for number, inner in enumerate(cuts):
        edges = [0, *inner, count]
        spans = list(pairwise(edges))
        names = [f"n{number}{index}" for index in range(len(spans))]
        nodes += [
            Node(name=name, flops_per_s=1e9, memory_bytes=10**10, up_bytes_per_s=1e7, down_bytes_per_s=1e7)
            for name in names
        ]
        stages = tuple(Stage(name, span) for name, span in zip(names, spans, strict=True))
        costs = workload(job)
        clusters.append(Cluster(f"c{number}", min(window, costs.largest_window), stages))
        each = tuple(StagePrediction(0.1, 0.1, 0.1, 0.1, 10**6) for _ in spans)
        predictions.append(ClusterPrediction(10.0, 0.1, 0.5, "compute", each))
    spans_of = [[stage.units for stage in cluster.stages] for cluster in clusters]
    rings = tuple(
        Ring(
            segment,
            tuple(
                (cluster.name, index)
                for cluster in clusters
                for index, stage in enumerate(cluster.stages)
                if stage.units[0] <= segment[0] and segment[1] <= stage.units[1]
            ),
        )
        for segment in common_refinement(spans_of)
    )
    plan = Plan(
        clusters=tuple(clusters),
        rings=rings,
        spares=(),
        predicted=Prediction(10.0, 0.1, 10.0, 1.0, "compute", "none", tuple(predictions)),
        fleet=Fleet(tuple(nodes), (), ()),
        costs=captured.costs,
        workload=workload(job),
        job=job.model_dump(mode="json"),
        job_file=str(JOB_FILE),
        seed=0,
    )
    validate(plan)
    return plan


@dataclass(frozen=True)
class Start:
    """Where a resumed run goes on. It has what `run_control` reads of launch.resume.Resumed."""

    anchor: Mapping[str, Tensor]
    optimizer: Mapping[str, Mapping[tuple[str, str], Tensor]]
    updates: Mapping[str, int]
    samples: int


def local_run(
    job: JobConfig,
    cuts: Sequence[Sequence[int]] | None = None,
    *,
    parts: Sequence[int] = (1,),
    start: Start | None = None,
) -> LocalRun:
    """A local run of `job`: clusters with these cuts, or with even cuts into `parts` stages each."""
    torch.set_num_threads(1)
    data = load_data(job, JOB_FILE)
    captured = capture_job(job, JOB_FILE, data)
    count = len(captured.units)
    chosen = cuts if cuts is not None else [[count * i // n for i in range(1, n)] for n in parts]
    plan = plan_with(job, captured, chosen)
    threads = {node.name: 1 for node in plan.fleet.nodes}
    setups = stage_setups(
        plan, job, captured, search_dirs=search_dirs(JOB_FILE), threads=threads, total_samples=job.stop.samples
    )
    weights = make_weights(job, JOB_FILE) if start is None else start.anchor
    states = {
        name: StageState(weights, {}, 0)
        if start is None
        else StageState(weights, start.optimizer[name], start.updates[setup.cluster])
        for name, setup in setups.items()
    }
    control = run_control(plan, job, setups, len(data.held_out), job.stop.samples, start)
    return LocalRun(setups, states, control)
