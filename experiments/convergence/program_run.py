"""One training by the real program, and what the theory asks of it: gradient norms on the probe set, and the delays.

`ravnest run` with another view: Ray starts a process for each stage, which train beside each other as fast as they can
on this machine. The view keeps the anchor of every checkpoint, whose exact gradient is computed when the run is over.
Delays are those that the stages reported in metrics.jsonl.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from cluster_planner import save_plan
from experiments.convergence.program_launch import run_forked
from experiments.convergence.program_task import CONTEXT
from experiments.convergence.schedule import Ints
from experiments.harness.paced_plan import equal_stages
from experiments.harness.report import ROOT
from ravnest.checkpoints.checkpoint import load_latest
from ravnest.checkpoints.run_folder import RunFolder
from ravnest.driver import run as launch_run
from ravnest.driver.observe import report
from ravnest.job.config import Job, job_from_mapping
from ravnest.job.initial_weights import make_weights
from ravnest.job.materials import capture_job, load_data, make_model
from ravnest.splitting import CapturedModel
from ring_allreduce.transport import LinkShape

JOB_FILE = ROOT / "program.yaml"
"""Not there: factories are looked for beside it."""
MODULE = "experiments.convergence.program_task"
SOURCES: Mapping[str, tuple[Mapping[str, object], str]] = {
    "digits": ({"factory": f"{MODULE}:perceptron"}, "images"),
    "characters": (
        {
            "factory": "examples.home.model:gpt",
            "args": {"vocab": 97, "layers": 2, "width": 32, "heads": 2, "context": CONTEXT},
        },
        "characters",
    ),
}
"""Of each task: the model, as a job has it, and the data."""
PROBES = 16
"""Checkpoints that a run is asked for."""


@dataclass(frozen=True)
class Trial:
    """A training of plain SGD, unless `optimizer` says more. Counts are of each cluster."""

    task: str
    updates: int
    step: float
    clusters: int = 1
    stages: int = 2
    staleness: int = 1
    """Updates: max_staleness; the window is the largest that it admits."""
    update_samples: int = 4
    update_every: int = 1
    round: int = 8
    """Updates of each cluster, on average."""
    seed: int = 0
    correction: str = "none"
    momentum: float = 0.0
    ray: bool = False
    """By `ravnest run` itself; otherwise its stages are forks of this process."""

    @property
    def window(self) -> int:
        return self.staleness * self.update_every + 1


@dataclass(frozen=True)
class Outcome:
    """What came of a trial."""

    error: float
    """Mean ‖∇f‖² at the anchors. Infinite where the training broke down."""
    probes: Sequence[tuple[int, float]]
    """(samples behind the anchor, ‖∇f‖²)"""
    staleness: Mapping[str, Ints]
    """Of each stage: (updates, micro-batches) in updates."""
    made: Mapping[str, int]
    """Of each cluster: its updates."""
    rounds: int
    seconds: float
    """Of training."""

    @property
    def oldest(self) -> int:
        return max(int(each.max(initial=0)) for each in self.staleness.values())


def train(trial: Trial) -> Outcome:
    """Run it. Raises RunFailed where the program fails for another reason than a loss that is not finite."""
    job, captured = _prepared(trial)
    plan = equal_stages(
        job,
        JOB_FILE,
        captured,
        clusters=trial.clusters,
        stages=trial.stages,
        forward_s=1e-3,
        link=LinkShape(1e9, 0.0),
        window=trial.window,
    )
    began_s = time.monotonic()
    with TemporaryDirectory(prefix="convergence-") as name:
        folder = RunFolder(Path(name) / "run")
        kept = _Kept(folder.checkpoints)
        if trial.ray:
            path = Path(name) / "plan.yaml"
            save_plan(plan, path)
            seconds = launch_run(plan, path, out_dir=folder.path, observer=kept).seconds
        else:
            seconds = run_forked(plan, job, captured, len(_task(trial.task)[1].held_out), folder, kept).training_s
        lines = [json.loads(line) for line in folder.metrics.read_text(encoding="utf-8").splitlines()]
    probe = Probe(trial.task)
    initial = probe.squared_norm(first_weights(trial))
    probes = [(0, initial), *((samples, probe.squared_norm(weights)) for samples, weights in kept.anchors)]
    outcome = Outcome(
        error=mean_between(probes),
        probes=probes,
        staleness=staleness_of(lines),
        made=made_of(lines),
        rounds=sum(line["kind"] == "round" for line in lines),
        seconds=seconds,
    )
    whole_s = time.monotonic() - began_s
    print(f"  {trial}: {outcome.error:.4g}, {whole_s:.0f} s, {seconds:.1f} s of training", file=sys.stderr)
    return outcome


def mean_between(probes: Sequence[tuple[int, float]]) -> float:
    """Of ‖∇f‖² over all samples, by trapezia between the probes. Infinite where a probe is not finite."""
    x = np.asarray([samples for samples, _ in probes], dtype=float)
    y = np.asarray([value for _, value in probes])
    if not np.isfinite(y).all():
        return math.inf
    return float(((y[1:] + y[:-1]) / 2 * np.diff(x)).sum() / (x[-1] - x[0]))


def staleness_of(lines: Sequence[Mapping[str, Any]]) -> dict[str, Ints]:
    """From metrics.jsonl, by stage: (updates, micro-batches)."""
    found: dict[str, list[list[int]]] = {}
    for line in lines:
        if line["kind"] == "update":
            found.setdefault(f"{line['cluster']}.s{line['stage']}", []).append(line["staleness"])
    return {stage: np.asarray(rows, dtype=np.int64) for stage, rows in sorted(found.items())}


def made_of(lines: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """From metrics.jsonl: how many updates each cluster made."""
    made: dict[str, int] = {}
    for line in lines:
        if line["kind"] == "update":
            made[line["cluster"]] = max(made.get(line["cluster"], 0), line["update"] + 1)
    return made


class _Kept:
    """Watches a run and keeps the anchor of each checkpoint before the next replaces it."""

    def __init__(self, checkpoints: Path) -> None:
        self._checkpoints = checkpoints
        self.anchors: list[tuple[int, dict[str, Tensor]]] = []

    def on(self, event: report.RunEvent) -> None:
        """Reads the checkpoint at once: the driver writes the next one in another thread."""
        if isinstance(event, report.CheckpointWrittenEvent):
            latest = load_latest(self._checkpoints, ())  # complete: this run has just committed it
            self.anchors.append((latest.manifest.samples, dict(latest.weights())))


class Probe:
    """The whole set of samples that a task draws from, and the exact gradient of its loss."""

    def __init__(self, task: str) -> None:
        model, data = _task(task)
        self.model: nn.Module = model
        self.data = data
        self.inputs, self.targets = data.given.samples.tensors

    def loss(self, chosen: slice = slice(None)) -> Tensor:
        """Mean over the `chosen` samples."""
        return self.loss_on(self.inputs[chosen], self.targets[chosen])

    def loss_on(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(self.model(inputs).flatten(0, -2), targets.flatten())

    def gradient(self, chosen: slice = slice(None), *, graph: bool = False) -> Tensor:
        """(d,)"""
        parts = torch.autograd.grad(self.loss(chosen), list(self.model.parameters()), create_graph=graph)
        return torch.cat([part.reshape(-1) for part in parts])

    def squared_norm(self, weights: Mapping[str, Tensor]) -> float:
        """‖∇f‖² there."""
        self.model.load_state_dict(dict(weights))
        return float((self.gradient().double() ** 2).sum())


def first_weights(trial: Trial) -> dict[str, Tensor]:
    """Those that a run of the trial starts from."""
    return make_weights(job_of(trial), JOB_FILE)


@cache
def _task(task: str) -> tuple[nn.Module, Any]:
    job = job_of(Trial(task, 1, 1.0))
    return make_model(job, JOB_FILE), load_data(job, JOB_FILE)


@cache
def _captured(task: str, micro_batch: int) -> CapturedModel:
    job = job_of(replace(Trial(task, 1, 1.0), update_samples=micro_batch))
    return capture_job(job, JOB_FILE, _task(task)[1])


def _prepared(trial: Trial) -> tuple[Job, CapturedModel]:
    job = job_of(trial)
    return job, _captured(trial.task, job.micro_batch)


def job_of(trial: Trial) -> Job:
    """As a user would write it."""
    model, data = SOURCES[trial.task]
    samples = trial.updates * trial.clusters * trial.update_samples
    return job_from_mapping(
        {
            "model": model,
            "data": {"factory": f"{MODULE}:{data}"},
            "micro_batch": trial.update_samples // trial.update_every,
            "update_every": trial.update_every,
            "optimizer": {
                "name": "sgd",
                "lr": trial.step * (1 - trial.momentum),
                "momentum": trial.momentum,
                "correction": trial.correction,
            },
            "max_staleness": trial.staleness,
            "split_backward": "never",
            "average_every": trial.round * trial.clusters * trial.update_samples,
            "max_lag": 1,
            "evaluate_every": max(1, samples // PROBES),
            "stop": {"samples": samples},
            "seed": trial.seed,
        }
    )
