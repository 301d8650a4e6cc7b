"""Three stage processes on this machine against one process of plain PyTorch, with the same update batch.

The plain loop takes whole batches of 64 and the better of its thread counts, with the same implementation of Adam. The
stages are those of a run, planned for three equal nodes, one thread each; they share this machine's cores. An update is
one micro-batch: in halves each of them would read the weights again, and products of 32 rows take longer a row than
those of 64. Gradients are as stale as with two micro-batches an update, one update at most.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from experiments.harness.paced_plan import endless_setups, equal_stages
from experiments.harness.report import ROOT, Cell, Claim, Part, Table, median, spread
from experiments.pipeline.forked import measure
from ravnest.job.config import Job, job_from_mapping
from ravnest.job.initial_weights import make_weights
from ravnest.job.materials import capture_job, load_data, make_model
from ravnest.stage.setup import StageSetup
from ravnest.training.batches import fetch
from ravnest.training.optimizer import build_optimizer
from ravnest.training.sampler import Sampler
from ring_allreduce.transport import LinkShape

UPDATE_BATCH, STAGES = 64, 3
JOB_FILE = ROOT / "one_process.yaml"
"""Not there: factories are looked for beside it."""

TOKEN = b"one-process-test"
LIMIT_S = 120.0
THREADS = tuple(sorted({1, len(os.sched_getaffinity(0))}))


@dataclass(frozen=True)
class Case:
    """One model. `micro_batch`: samples of a stage's micro-batch; `updates`: of one measurement by the stages."""

    name: str
    model: Mapping[str, object]
    micro_batch: int
    updates: int
    target: float


CASES = (
    Case(
        "CNN of 16 k parameters",
        {"factory": "examples.digits.model:cnn", "args": {"width": 14, "dropout": 0.0}},
        micro_batch=64,
        updates=400,
        target=0.4,
    ),
    Case(
        "perceptron of 4.3 M parameters",
        {"factory": "experiments.pipeline.one_process_model:perceptron"},
        micro_batch=64,
        updates=80,
        target=0.9,
    ),
)


def run(*, quick: bool) -> Part:
    """Measure, and judge."""
    claims, rows = [], []
    for case in CASES:
        plain, ours = _measured(case, quick=quick)
        best = max(plain, key=lambda threads: median(plain[threads]))
        ratio = median(ours) / median(plain[best])
        for threads, speeds in plain.items():
            rows.append(_row(case, f"one process, {threads} threads", speeds, median(plain[best])))
        rows.append(_row(case, f"{STAGES} stages, micro-batches of {case.micro_batch}", ours, median(plain[best])))
        claims.append(
            Claim(
                case.name,
                f"{case.name}: samples/s of {STAGES} stages over those of one process with {best} threads",
                f">= {case.target}×",
                f"{ratio:.2f}×",
                ratio >= case.target,
            )
        )
    columns = ["model", "what", "samples/s, median (lowest–highest)", "× one process"]
    note = (
        f"{len(os.sched_getaffinity(0))} cores. Adam, {UPDATE_BATCH} samples an update; the two take turns. The stages'"
        " gradients are stale by one update at most, which their Adam looks ahead for; those of one process are not."
    )
    return Part("one_process", "Against one process", claims, [Table("Digits", columns, rows)], notes=[note])


def _row(case: Case, what: str, speeds: list[float], best: float) -> list[Cell]:
    return [case.name, what, spread(speeds), round(median(speeds) / best, 3)]


def _measured(case: Case, *, quick: bool) -> tuple[dict[int, list[float]], list[float]]:
    """Samples per second, by the plain loop's threads, and of the stages."""
    job = _job(case)
    weights = make_weights(job, JOB_FILE)
    setups = _setups(job)
    plain: dict[int, list[float]] = {threads: [] for threads in THREADS}
    ours = []
    updates = 5 if quick else case.updates
    for _ in range(1 if quick else 3):
        for threads in THREADS:
            plain[threads].append(_plain(job, weights, threads, updates))
        torch.set_num_threads(1)
        stages = measure(setups, weights, warm_up=max(2, updates // 4), updates=updates, limit_s=LIMIT_S)
        ours.append(1e3 * job.micro_batch / max(stage.wall_ms for stage in stages))
    return plain, ours


def _job(case: Case) -> Job:
    return job_from_mapping(
        {
            "model": case.model,
            "data": {"factory": "examples.digits.data:digits"},
            "micro_batch": case.micro_batch,
            "update_every": UPDATE_BATCH // case.micro_batch,
            "optimizer": {"name": "adam", "lr": 1e-3},
            "average_every": 10**9,
            "evaluate_every": 10**9,
            "stop": {"samples": 10**9},
        }
    )


def _setups(job: Job) -> dict[str, StageSetup]:
    captured = capture_job(job, JOB_FILE, load_data(job, JOB_FILE))
    largest = 2 * job.update_every
    plan = equal_stages(
        job, JOB_FILE, captured, clusters=1, stages=STAGES, forward_s=1e-3, link=LinkShape(1e9, 0.0), window=largest
    )
    return endless_setups(plan, job, captured, TOKEN, imitate=None)


def _plain(job: Job, weights: dict[str, Tensor], threads: int, updates: int) -> float:
    """Samples per second of ordinary training."""
    torch.set_num_threads(threads)
    model: Any = make_model(job, JOB_FILE)
    model.load_state_dict(weights)
    data = load_data(job, JOB_FILE)
    sampler = Sampler(len(data.train), job.seed, (0.0, 1.0), UPDATE_BATCH)
    optimizer = build_optimizer(job.optimizer, model.named_parameters())
    numbers = count()

    def train(updates: int) -> None:
        for _ in range(updates):
            inputs, target = fetch(data.train, sampler.batch(next(numbers)))
            loss = functional.cross_entropy(model(*inputs), target)
            loss.backward()  # type: ignore[no-untyped-call]
            loss.item()
            optimizer.step()
            optimizer.zero_grad()

    train(max(2, updates // 4))
    began_s = time.perf_counter()
    train(updates)
    return UPDATE_BATCH * updates / (time.perf_counter() - began_s)
