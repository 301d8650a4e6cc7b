"""How fast this machine does a job's kind of work: forwards, backwards and updates as a stage makes them, timed.

Runs each span of the work as the stage of a run would (StageCompute), with weights of chance. Decides how often.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from ravnest.job.config import Job
from ravnest.profiling.benchmark_work import BenchmarkWork
from ravnest.profiling.estimates import MeasuredFigure, typical
from ravnest.splitting import StageModule, StageProgram, TensorSpec
from ravnest.stage.compute import StageCompute
from ravnest.stage.setup import StageSetup
from ravnest.training.batches import BatchSource
from ravnest.training.losses import build_loss
from ravnest.training.optimizer import OptimizerConfig
from ravnest.training.schedule import ScheduleConfig
from ravnest.training.weights import VersionedWeights

LEAST_REPEATS, MOST_REPEATS, WARM_UP_REPEATS = 4, 400, 2
_LEARNING_RATE = 1e-12
"""So that weights of chance stay as they are."""


@dataclass(frozen=True)
class Speed:
    """Of one device. `flops_per_s` is what a plan divides by."""

    flops_per_s: MeasuredFigure
    micro_batch_s: float
    """Forward and backward of one micro-batch, and its share of an update, through all units."""
    threads: int
    repeats: int


class _SameBatch(BatchSource):
    """The first micro-batch, again and again."""

    def __init__(self, inputs: tuple[Tensor, ...], target: Tensor) -> None:
        self._batch = inputs, target

    def train(self, micro_batch: int) -> tuple[tuple[Tensor, ...], Tensor]:
        return self._batch


def measure_speed(
    work: BenchmarkWork, *, device: str, threads: int, seconds: float, search_dirs: Sequence[Path]
) -> Speed:
    """Takes about `seconds`, or what LEAST_REPEATS take where that is more. Raises RunFailed where the device is not
    there, or the losses are no numbers."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        received: tuple[Tensor, ...] = ()
        times: list[list[float]] = []
        for index in range(len(work.programs)):
            compute = _stage(work, index, device, threads, search_dirs)
            received, taken = _timed(compute, work, index, received, seconds / len(work.programs))
            times.append(taken)
    finally:
        torch.set_num_threads(before)
    whole = [sum(each) for each in zip(*times, strict=False)]
    per_micro_batch_s = sum(median(each) for each in times)
    return Speed(
        MeasuredFigure(work.flops / per_micro_batch_s, typical(whole).spread),
        per_micro_batch_s,
        threads,
        min(len(each) for each in times),
    )


def _timed(
    compute: StageCompute, work: BenchmarkWork, index: int, received: tuple[Tensor, ...], seconds: float
) -> tuple[tuple[Tensor, ...], list[float]]:
    """What the span sends on, and the times of its micro-batches."""
    needing = [spec.needs_gradient for spec in work.programs[index].outputs]
    last = index == len(work.programs) - 1
    times: list[float] = []
    sent: tuple[Tensor, ...] = ()
    end_s = math.inf
    for number in range(WARM_UP_REPEATS + MOST_REPEATS):
        began_s = time.perf_counter()
        sent = compute.forward(number, received)
        gradients = (
            () if last else tuple(torch.ones_like(out) for out, needs in zip(sent, needing, strict=True) if needs)
        )
        _, norm_sq = compute.backward(number, gradients, ends_group=True)
        passed_s = time.perf_counter()
        compute.update(norm_sq)
        now_s = time.perf_counter()
        if number == WARM_UP_REPEATS - 1:
            end_s = now_s + seconds
        if number >= WARM_UP_REPEATS:
            times.append(passed_s - began_s + (now_s - passed_s) / work.job.update_every)
            if now_s >= end_s and len(times) >= LEAST_REPEATS:
                break
    return sent, times


def _stage(work: BenchmarkWork, index: int, device: str, threads: int, search_dirs: Sequence[Path]) -> StageCompute:
    program = work.programs[index]
    optimizer = work.job.optimizer.model_dump() | {"lr": _LEARNING_RATE, "schedule": ScheduleConfig()}
    # Each micro-batch makes an update here, whose time is then shared out as the job shares it.
    job = work.job.model_copy(update={"update_every": 1, "optimizer": OptimizerConfig(**optimizer)})
    setup = StageSetup(
        cluster="profile",
        index=index,
        stages=len(work.programs),
        window=1,
        largest_window=1,
        share=(0.0, 1.0),
        total_updates=None,
        evaluation_batch=job.micro_batch,
        evaluation_short_last=False,
        job=job,
        job_file=work.job_file,
        search_dirs=tuple(str(path) for path in search_dirs),
        program=program,
        segments=(),
        threads=threads,
        device=device,
        max_message_bytes=1,
        room_to_split=0,
        recomputes=job.activation_checkpointing == "always",
        token=b"",
    )
    module = StageModule(program, {**work.buffers, **_weights(program, work.job)}, device)
    weights = VersionedWeights(module, job.optimizer, version=0)
    loss = build_loss(job.loss, search_dirs)
    return StageCompute(setup, module, weights, _SameBatch(work.inputs, work.target), loss, ())


def _weights(program: StageProgram, job: Job) -> dict[str, Tensor]:
    chance = torch.Generator().manual_seed(job.seed)
    return {spec.name: _weight(spec, chance) for spec in (*program.parameters, *program.borrowed)}


def _weight(spec: TensorSpec, chance: torch.Generator) -> Tensor:
    """Small enough that values neither explode nor vanish on their way through many layers: both would change how long
    operations take."""
    if len(spec.shape) < 2:
        of_a_norm = spec.name.endswith("weight")
        return torch.full(spec.shape, 1.0 if of_a_norm else 0.0, dtype=spec.dtype)
    inputs = math.prod(spec.shape[1:])
    return (torch.randn(spec.shape, generator=chance) / math.sqrt(inputs)).to(spec.dtype)
