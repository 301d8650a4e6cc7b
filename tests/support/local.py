"""Plans with given cuts, and local runs of them, for tests."""

import json
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
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
    RegionLink,
    Ring,
    Stage,
    StagePrediction,
    common_refinement,
    validate,
)
from ravnest.checkpoints.manifest import optimizer_file, segment_file
from ravnest.driver.in_process import LocalRun
from ravnest.driver.preparation import StageState
from ravnest.driver.session import run_control
from ravnest.driver.stage_setups import stage_setups
from ravnest.job.config import Job, job_from_mapping, load_job
from ravnest.job.initial_weights import make_weights
from ravnest.job.materials import capture_job, load_data, search_dirs
from ravnest.job.pretrained import pretrained_weights
from ravnest.planning.workload import workload
from ravnest.splitting import CapturedModel
from ravnest.stage.setup import StageSetup

JOB_FILE = Path(__file__).parent / "jobs" / "job.yaml"
CAPTURES = "RAVNEST_TESTS_CAPTURES"
"""The environment variable by which tests/conftest.py names the folder where workers of pytest keep captured models."""


def tiny_job(**changes: Any) -> Job:
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


def plan_with(job: Job, captured: CapturedModel, cuts: Sequence[Sequence[int]], window: int = 64) -> Plan:
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
        recomputes = job.activation_checkpointing == "always"
        stages = tuple(Stage(name, span, recomputes) for name, span in zip(names, spans, strict=True))
        costs = workload(job)
        held = costs.held(len(stages), 0) if costs.is_synchronous else min(window, costs.largest_window)
        clusters.append(Cluster(f"c{number}", held, stages))
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
    unmade: Mapping[str, int] = field(default_factory=dict)


@cache
def _captured(model: str, data: str, measures: str, micro_batch: int) -> CapturedModel:
    """Captures are the slow part of a tiny run, and depend on no more than this. Workers of pytest share them."""
    read = json.loads(measures)
    job = tiny_job(model=json.loads(model), data=json.loads(data), micro_batch=micro_batch, **read)
    loaded = load_data(job, JOB_FILE)
    if not (folder := os.environ.get(CAPTURES)):
        return capture_job(job, JOB_FILE, loaded)
    path = Path(folder) / sha256(repr((model, data, measures, micro_batch)).encode()).hexdigest()
    if not path.exists():
        new = path.with_suffix(f".{os.getpid()}")
        new.write_bytes(pickle.dumps(capture_job(job, JOB_FILE, loaded)))
        new.replace(path)
    captured: CapturedModel = pickle.loads(path.read_bytes())
    return captured


@cache
def _weights(model: str, loss: str, seed: int) -> Mapping[str, Tensor]:
    """Recording how they are made takes longer than many an update, and depends on no more than this."""
    return make_weights(tiny_job(model=json.loads(model), seed=seed, **json.loads(loss)), JOB_FILE)


def _weights_of(job: Job) -> Mapping[str, Tensor]:
    """The job's initial weights; how they are made is recorded once for all tests."""
    kept = _weights(job.model.model_dump_json(), job.model_dump_json(include={"loss"}), job.seed)
    return {name: tensor.detach().clone() for name, tensor in kept.items()}


def parts_of_plan(plan: Plan) -> frozenset[str]:
    """The names of the files that every checkpoint of a run of this plan holds."""
    segments = (segment_file(ring) for ring in range(len(plan.rings)))
    stages = ((cluster.name, index) for cluster in plan.clusters for index in range(len(cluster.stages)))
    return frozenset((*segments, *(optimizer_file(*stage) for stage in stages)))


def captured_job(job: Job) -> CapturedModel:
    """The job's captured model; each model is captured once for all tests."""
    measures = job.model_dump_json(include={"loss", "metrics", "frozen"})
    return _captured(job.model.model_dump_json(), job.data.model_dump_json(), measures, job.micro_batch)


def setups_of(
    job: Job,
    cuts: Sequence[Sequence[int]] | None = None,
    *,
    parts: Sequence[int] = (1,),
    changed: Callable[[Plan], Plan] = lambda plan: plan,
    **changes: Any,
) -> tuple[dict[str, StageSetup], Plan]:
    """The stages' setups and their plan, which is `changed`; `changes` are further arguments of stage_setups."""
    captured = captured_job(job)
    count = len(captured.units)
    chosen = cuts if cuts is not None else [[count * i // n for i in range(1, n)] for n in parts]
    plan = changed(plan_with(job, captured, chosen))
    return setups_by(plan, job, **changes), plan


def setups_by(plan: Plan, job: Job, **changes: Any) -> dict[str, StageSetup]:
    """The stages' setups by a plan of the job; `changes` are further arguments of stage_setups."""
    arguments: dict[str, Any] = {
        "search_dirs": search_dirs(JOB_FILE),
        "threads": {node.name: 1 for node in plan.fleet.nodes},
        "total_samples": job.stop.samples,
        "token": b"t" * 16,
        **changes,
    }
    return stage_setups(plan, job, captured_job(job), **arguments)


def local_run(
    job: Job,
    cuts: Sequence[Sequence[int]] | None = None,
    *,
    parts: Sequence[int] = (1,),
    start: Start | None = None,
    order: Callable[[Sequence[str]], Sequence[str]] = lambda stages: stages,
    stands_by: bool = False,
    device: str = "cpu",
    changed: Callable[[Plan], Plan] = lambda plan: plan,
    **network: Any,
) -> LocalRun:
    """A local run of `job`: clusters with these cuts, or with even cuts into `parts` stages each.

    `order` and `network`: LocalRun's. `stands_by`: run_control's. `device`: where all stages compute. `changed`: of the
    plan.
    """
    torch.set_num_threads(1)
    data = load_data(job, JOB_FILE)
    setups, plan = setups_of(job, cuts, parts=parts, changed=changed)
    setups = {name: replace(setup, machine=replace(setup.machine, device=device)) for name, setup in setups.items()}
    pretrained = pretrained_weights(job, JOB_FILE, captured_job(job))
    made: Mapping[str, Tensor] = _weights_of(job) if pretrained is None else pretrained
    weights = made if start is None else start.anchor
    states = {
        name: StageState(weights, {}, 0)
        if start is None
        else StageState(weights, start.optimizer[name], start.updates[setup.cluster])
        for name, setup in setups.items()
    }
    control = run_control(plan, job, setups, len(data.held_out), job.stop.samples, start, stands_by=stands_by)
    return LocalRun(setups, states, control, plan=plan, order=order, **network)


def in_two_regions(plan: Plan) -> Plan:
    """The plan with the second half of its clusters so far away that its rings can become rings of rings."""
    half = len(plan.clusters) // 2
    region_of = {stage.node: "fi"[i >= half] for i, cluster in enumerate(plan.clusters) for stage in cluster.stages}
    nodes = tuple(replace(node, region=region_of[node.name]) for node in plan.fleet.nodes)
    near, far = [RegionLink(one, one, 1e-4, 1e7) for one in "fi"], RegionLink("f", "i", 0.01, 1e4)
    return replace(plan, fleet=replace(plan.fleet, nodes=nodes, regions=(*near, far)))


def job_in(folder: Path, **given: Any) -> Job:
    """A job with these keys alone, written as `job.yaml` in a folder where its code lies."""
    (folder / "job.yaml").write_text(json.dumps(given))  # which is YAML, too
    return load_job(folder / "job.yaml")
