"""Measures how fast a machine does a job's kind of work: forward, backward and updates, as a stage makes them.

In: a job and the memory of the smallest machine, or for the default work nothing. Out: `BenchmarkWork`, and the `Speed`
at which a device does it. The work is made once, where the profile was asked for, so that the measured machines need
neither the model nor the data: the captured units of the model, of which all that are alike are one kind. Each kind is
run once, as the stage of a run would run it (StageCompute), with random weights and with what the kind before it gives.
How the times of kinds become speeds, so that a plan predicts them, stands in memory_traffic.py.

The default work is a small transformer in float32: 4 layers of width 512 with 8 heads over 128 tokens, feed-forward
2048, 4 samples a micro-batch, AdamW.
"""

import math
import operator
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from ravnest.profiling.memory_traffic import UnitKind, flops_per_s
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
"""The share of the smallest machine's free memory that a unit may need."""

DESCRIPTION = "a transformer of 4 layers, width 512, 128 tokens, 4 samples a micro-batch, in float32 with AdamW"
"""The default work in words, for reports."""

LAYERS, WIDTH, HEADS, TOKENS, CLASSES = 4, 512, 8, 128, 512
_SAMPLES = 8


@dataclass(frozen=True)
class BenchmarkWork:
    """The kinds of a model's units with their inputs and buffers; the values of parameters do not matter."""

    job: Job
    job_file: str
    programs: tuple[StageProgram, ...]
    """One unit of each kind, in the order of their first ones; the model's first unit comes first, its last one last.
    """
    kinds: tuple[UnitKind, ...]
    before: tuple[int, ...]
    """For each kind, that of the unit before its first one; of no use for the model's first."""
    inputs: tuple[Tensor, ...]
    """The first micro-batch, in the order in which the first unit takes it."""
    target: Target
    buffers: dict[str, Tensor]


def work_of(job: Job, job_file: str | Path, free_bytes: int) -> BenchmarkWork:
    """Captures the job's model and chooses one unit of each kind, for machines that have `free_bytes` of memory.

    Raises InvalidInput for a job that `ravnest plan` would refuse, and where no machine could hold one of its units.
    """
    data = load_data(job, job_file)
    inputs, target = first_batch(job, job_file, data)
    captured = capture_job(job, job_file, data)
    costs = SpanCosts(captured.costs, workload(job))
    require_room(costs, round(MEMORY_SHARE * free_bytes))
    kind_of, firsts, counts = _alike(captured)
    programs = tuple(captured.span(first, first + 1) for first in firsts)
    recomputes = job.activation_checkpointing == "always"
    passes = (3 + recomputes) * job.micro_batch
    kinds = [
        UnitKind(
            count, costs.flops(first, first + 1, recomputes=recomputes), passes * captured.units[first].moved_bytes
        )
        for first, count in zip(firsts, counts, strict=True)
    ]
    return BenchmarkWork(
        job=job,
        job_file=str(job_file),
        programs=programs,
        kinds=tuple(kinds),
        before=tuple(kind_of[max(0, first - 1)] for first in firsts),
        inputs=_in_order(inputs, programs[0]),
        target=target,
        buffers=_buffers(job, job_file, captured),
    )


def require_room(costs: SpanCosts, memory_bytes: int) -> None:
    """Raises InvalidInput naming a unit that needs more than `memory_bytes` with one micro-batch in flight."""
    for unit in range(costs.count):
        needed = costs.memory_bytes(unit, unit + 1, 1)
        if needed > memory_bytes:
            raise InvalidInput(
                f"unit {unit} of the model needs {needed / 1e9:.2g} GB, and the smallest machine spares"
                f" {memory_bytes / 1e9:.2g} GB for the measurement: free memory there, or profile without --job"
            )


def _alike(captured: CapturedModel) -> tuple[list[int], list[int], list[int]]:
    """Returns the kind of each unit, and of each kind its first unit and how many there are.

    Units are alike that cost the same, and that take and give tensors of the same forms. The first and the last one
    read data, and are alike to none.
    """
    kinds: dict[object, int] = {}
    kind_of: list[int] = []
    firsts: list[int] = []
    last = len(captured.units) - 1
    for index, unit in enumerate(captured.units):
        if index in (0, last):
            key: object = index
        else:
            program = captured.span(index, index + 1)
            crossing = [(spec.dtype, spec.shape, spec.needs_gradient) for spec in (*program.inputs, *program.outputs)]
            key = replace(unit, name=""), len(program.inputs), tuple(crossing)
        if key not in kinds:
            kinds[key] = len(kinds)
            firsts.append(index)
        kind_of.append(kinds[key])
    return kind_of, firsts, [kind_of.count(kind) for kind in range(len(firsts))]


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
    kind_s: tuple[float, ...] = ()
    """The same of one unit of each kind."""
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
    before_threads = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        sent: list[tuple[Tensor, ...]] = []
        times: list[list[float]] = []
        for index, before in enumerate(work.before):
            compute = _stage(work, index, device, threads, search_dirs)
            with experts_stand_in(work.job.experts):
                given = sent[before] if index else ()
                passed_on, taken = _timed(compute, work, index, given, seconds / len(work.programs))
            sent.append(passed_on)
            times.append(taken)
    finally:
        torch.set_num_threads(before_threads)
    counts = [kind.count for kind in work.kinds]
    whole = [sum(map(operator.mul, counts, each)) for each in zip(*times, strict=False)]
    kind_s = tuple(median(each) for each in times)
    return Speed(
        MeasuredFigure(flops_per_s(work.kinds, kind_s, 0.0), typical(whole).spread),
        sum(map(operator.mul, counts, kind_s)),
        threads,
        min(len(each) for each in times),
        kind_s,
    )


def _timed(
    compute: StageCompute, work: BenchmarkWork, index: int, received: tuple[Tensor, ...], seconds: float
) -> tuple[tuple[Tensor, ...], list[float]]:
    """Returns the tensors that the unit sends on, and the seconds that each micro-batch took."""
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
