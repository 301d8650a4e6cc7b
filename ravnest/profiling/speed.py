"""Measures how fast a machine does a job's kind of work: forward, backward and updates, as a stage makes them.

In: a job and the memory of the smallest machine, or for the default work nothing. Out: `BenchmarkWork`, and the `Speed`
at which a device does it. The work is made once, where the profile was asked for, so that the measured machines need
neither the model nor the data: the captured units of the model, cut into spans that fit the memory. Each span is run as
the stage of a run would run it (StageCompute), with random weights. The FLOPs of the work are those that a plan counts
for it (`SpanCosts.flops`), so that a plan with the measured speed predicts the measured time.

The default work is a small transformer in float32: 4 layers of width 512 with 8 heads over 128 tokens, feed-forward
2048, 4 samples a micro-batch, AdamW.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from cluster_planner import SpanCosts
from ravnest.errors import InvalidInput
from ravnest.job.config import Job, job_from_mapping
from ravnest.job.experts_table import experts_stand_in
from ravnest.job.initial_weights import make_buffers
from ravnest.job.materials import capture_job, first_batch, load_data
from ravnest.planning.workload import workload
from ravnest.profiling.estimates import MeasuredFigure, typical
from ravnest.splitting import CapturedModel, StageProgram, TensorSpec
from ravnest.stage.assembling import stage_compute
from ravnest.stage.compute import StageCompute
from ravnest.stage.setup import (
    ComputeResources,
    EvaluationSetup,
    StageBounds,
    StagePlace,
    StageSetup,
    TransportSetup,
    UserCode,
)
from ravnest.training.batches import BatchSource, Target, arguments
from ravnest.training.optimizer import OptimizerConfig, ScheduleConfig

MEMORY_SHARE = 0.5
"""The share of the smallest machine's free memory that a span may need."""

DESCRIPTION = "a transformer of 4 layers, width 512, 128 tokens, 4 samples a micro-batch, in float32 with AdamW"
"""The default work in words, for reports."""

LAYERS, WIDTH, HEADS, TOKENS, CLASSES = 4, 512, 8, 128, 512
_SAMPLES = 8


@dataclass(frozen=True)
class BenchmarkWork:
    """Consecutive spans of a model with their inputs and buffers; the values of parameters do not matter."""

    job: Job
    job_file: str
    programs: tuple[StageProgram, ...]
    flops: float
    """The FLOPs of one micro-batch through all spans: forward, backward and its share of an update."""
    inputs: tuple[Tensor, ...]
    """The first micro-batch, in the order in which the first span takes it."""
    target: Target
    buffers: dict[str, Tensor]


def work_of(job: Job, job_file: str | Path, free_bytes: int) -> BenchmarkWork:
    """Captures the job's model and cuts it into spans for machines that have `free_bytes` of memory.

    Raises InvalidInput for a job that `ravnest plan` would refuse, and where no machine could hold one of its units.
    """
    data = load_data(job, job_file)
    inputs, target = first_batch(job, job_file, data)
    captured = capture_job(job, job_file, data)
    costs = SpanCosts(captured.costs, workload(job))
    spans = spans_within(costs, round(MEMORY_SHARE * free_bytes))
    programs = tuple(captured.span(*span) for span in spans)
    recomputes = job.activation_checkpointing == "always"
    return BenchmarkWork(
        job=job,
        job_file=str(job_file),
        programs=programs,
        flops=sum(costs.flops(*span, recomputes=recomputes) for span in spans),
        inputs=_in_order(inputs, programs[0]),
        target=target,
        buffers=_buffers(job, job_file, captured),
    )


def spans_within(costs: SpanCosts, memory_bytes: int) -> Sequence[tuple[int, int]]:
    """Returns the longest spans of units, each of which needs at most `memory_bytes` with one micro-batch in flight.

    Raises InvalidInput naming a unit that needs more by itself.
    """
    spans: list[tuple[int, int]] = []
    start = 0
    while start < costs.count:
        end = start
        while end < costs.count and costs.memory_bytes(start, end + 1, 1) <= memory_bytes:
            end += 1
        if end == start:
            needed = costs.memory_bytes(start, start + 1, 1)
            raise InvalidInput(
                f"unit {start} of the model needs {needed / 1e9:.2g} GB, and the smallest machine spares"
                f" {memory_bytes / 1e9:.2g} GB for the measurement: free memory there, or profile without --job"
            )
        spans.append((start, end))
        start = end
    return spans


def _in_order(inputs: tuple[Tensor, ...] | dict[str, Tensor], first: StageProgram) -> tuple[Tensor, ...]:
    by_position, by_name = arguments(inputs)
    return (*by_position, *(by_name[spec.name] for spec in first.inputs[len(by_position) :]))


def _buffers(job: Job, job_file: str | Path, captured: CapturedModel) -> dict[str, Tensor]:
    made = make_buffers(job, job_file)
    names = (*captured.train.converted.buffers, *(spec.name for spec in captured.loss_buffers))
    return {name: made[name] for name in names if name in made}


def benchmark_job() -> Job:
    """Returns the job of the default work; its factories are in this module."""
    return job_from_mapping(
        {
            "model": {"factory": f"{__name__}:benchmark_model"},
            "data": {"factory": f"{__name__}:benchmark_data"},
            "micro_batch": 4,
            "update_every": 8,
            "optimizer": {"name": "adamw", "lr": 1e-4},
            "stop": {"samples": 1024},
        }
    )


class BenchmarkModel(nn.Module):
    """The transformer of the default work: (samples, TOKENS, WIDTH) in, (samples, CLASSES) out."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(x.mean(dim=1))
        return out


def benchmark_model() -> nn.Module:
    """Returns the model factory of the default work."""
    return BenchmarkModel()


@dataclass(frozen=True)
class BenchmarkData:
    """The datasets of the default work."""

    train: TensorDataset
    held_out: TensorDataset


def benchmark_data() -> BenchmarkData:
    """Returns the data factory of the default work: a few samples of seeded noise."""
    chance = torch.Generator().manual_seed(0)
    inputs = torch.randn(_SAMPLES, TOKENS, WIDTH, generator=chance)
    targets = torch.randint(0, CLASSES, (_SAMPLES,), generator=chance)
    return BenchmarkData(TensorDataset(inputs, targets), TensorDataset(inputs[:1], targets[:1]))


LEAST_REPEATS, MOST_REPEATS, WARM_UP_REPEATS = 4, 400, 2
_LEARNING_RATE = 1e-12
"""It is so small that the random weights stay as they are."""


@dataclass(frozen=True)
class Speed:
    """The speed of one device. A plan divides FLOPs by `flops_per_s`."""

    flops_per_s: MeasuredFigure
    micro_batch_s: float
    """The seconds for forward and backward of one micro-batch through all units, and its share of an update."""
    threads: int
    repeats: int
    process_bytes: int | None = None
    """What a process takes of a GPU's memory beside its tensors (gpu_process.py); None where that was not measured."""


class _SameBatch(BatchSource):
    """Gives the first micro-batch again and again."""

    def __init__(self, inputs: tuple[Tensor, ...], target: Target) -> None:
        self._batch = inputs, target

    def train(self, micro_batch: int) -> tuple[tuple[Tensor, ...], Target]:
        return self._batch


def measure_speed(
    work: BenchmarkWork, *, device: str, threads: int, seconds: float, search_dirs: Sequence[Path]
) -> Speed:
    """Measures how fast `device` does `work` with so many threads.

    It takes about `seconds` seconds, or longer if LEAST_REPEATS micro-batches do. Factories are looked for in
    `search_dirs`. Raises RunFailed where the device does not exist, or losses are not finite numbers.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        received: tuple[Tensor, ...] = ()
        times: list[list[float]] = []
        for index in range(len(work.programs)):
            compute = _stage(work, index, device, threads, search_dirs)
            with experts_stand_in(work.job.experts):
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
    """Returns the tensors that the span sends on, and the seconds that each micro-batch took."""
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
    optimizer["groups"] = [group | {"lr": None} for group in optimizer["groups"]]
    # Each micro-batch makes an update here, whose time is then shared out as the job shares it.
    job = work.job.model_copy(update={"update_every": 1, "optimizer": OptimizerConfig(**optimizer)})
    setup = StageSetup(
        place=StagePlace("profile", index, len(work.programs)),
        bounds=StageBounds(window=1, largest_window=1, recomputes=job.activation_checkpointing == "always"),
        evaluation=EvaluationSetup(job.micro_batch, short_last=False),
        job=job,
        code=UserCode(work.job_file, tuple(str(path) for path in search_dirs)),
        program=program,
        segments=(),
        machine=ComputeResources(threads, device),
        transport=TransportSetup(token=b"", max_message_bytes=1),
    )
    given = {**work.buffers, **_weights(program, work.job)}
    return stage_compute(setup, _SameBatch(work.inputs, work.target), given)


def _weights(program: StageProgram, job: Job) -> dict[str, Tensor]:
    chance = torch.Generator().manual_seed(job.seed)
    return {spec.name: _weight(spec, chance) for spec in (*program.parameters, *program.borrowed)}


def _weight(spec: TensorSpec, chance: torch.Generator) -> Tensor:
    """Random weights of a size at which values neither explode nor vanish in many layers.

    Both would change how long operations take.
    """
    if len(spec.shape) < 2:
        of_a_norm = spec.name.endswith("weight")
        return torch.full(spec.shape, 1.0 if of_a_norm else 0.0, dtype=spec.dtype)
    inputs = math.prod(spec.shape[1:])
    return (torch.randn(spec.shape, generator=chance) / math.sqrt(inputs)).to(spec.dtype)
