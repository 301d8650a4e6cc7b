"""Measures how fast a machine does a job's kind of work: forward, backward and updates, as a stage makes them.

In: the units to measure (benchmark_work.py). Out: the `Speed` at which a device does them. Each kind is run once, as
the stage of a run would run it (StageCompute), with random weights and with what the kind before it gives. How the
times of kinds become speeds, so that a plan predicts them, stands in memory_traffic.py.

On a GPU, kernels are launched ahead of what is computed, and what passes from unit to unit stays there. So a unit alone
takes longer than in a stage. There the model's first units are also run together, as one stage, and the times of kinds
are brought to what these took.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from ravnest.errors import RunFailed
from ravnest.job.config import Job
from ravnest.job.experts_table import experts_stand_in
from ravnest.profiling.benchmark_work import BenchmarkWork
from ravnest.profiling.estimates import MeasuredFigure, typical
from ravnest.profiling.memory_traffic import flops_per_s
from ravnest.splitting import StageProgram, TensorSpec
from ravnest.stage.assembling import stage_compute
from ravnest.stage.compute import StageCompute
from ravnest.stage.device import HostDevice
from ravnest.stage.setup import (
    ComputeResources,
    EvaluationSetup,
    StageBounds,
    StagePlace,
    StageSetup,
    TransportSetup,
    UserCode,
)
from ravnest.training.batches import BatchSource, Target
from ravnest.training.optimizer import OptimizerConfig, ScheduleConfig

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

    It takes about `seconds` seconds, on a GPU twice as many, or longer if LEAST_REPEATS micro-batches do. Factories are
    looked for in `search_dirs`. Raises RunFailed where the device does not exist or is too full, or losses are not
    finite numbers.
    """
    before_threads = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        machine = ComputeResources(threads, device)
        with experts_stand_in(work.job.experts):
            times = _one_by_one(work, machine, seconds, search_dirs)
            whole = _together_s(work, machine, seconds, search_dirs) if keeps_tensors(device) else None
    except torch.OutOfMemoryError as error:
        raise RunFailed(f"{device} has too little free memory: {error}") from error
    finally:
        torch.set_num_threads(before_threads)
    kind_s = tuple(median(each) for each in times)
    if whole is None:
        whole = [_sum(work.counts, each) for each in zip(*times, strict=False)]
    else:
        kind_s = as_together(kind_s, work.together.counts, median(whole))
    return Speed(
        MeasuredFigure(flops_per_s(work.kinds, kind_s, 0.0), typical(whole).spread),
        _sum(work.counts, kind_s),
        threads,
        min(len(each) for each in times),
        kind_s,
    )


def as_together(kind_s: Sequence[float], counts: Sequence[int], together_s: float) -> tuple[float, ...]:
    """Returns the seconds of kinds that were measured one by one, in proportion, so that the units which took
    `together_s` as one stage take as long. `counts`: how many of these are of each kind."""
    share = together_s / _sum(counts, kind_s)
    return tuple(seconds * share for seconds in kind_s)


def _sum(counts: Sequence[int], kind_s: Sequence[float]) -> float:
    return sum(count * seconds for count, seconds in zip(counts, kind_s, strict=True))


def keeps_tensors(device: str) -> bool:
    """Whether what passes from unit to unit stays on the device, and is not in host memory anyway."""
    return torch.device(device).type != "cpu"


class StayingThere(HostDevice):
    """A device from which a unit's outputs and gradients are not taken: in a stage they pass to the next unit there."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def bring(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(tensor.to(self._device).detach() for tensor in tensors)

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()


def _one_by_one(
    work: BenchmarkWork, machine: ComputeResources, seconds: float, search_dirs: Sequence[Path]
) -> list[list[float]]:
    """Returns for each kind the seconds that each micro-batch took with one unit of it."""
    sent: list[tuple[Tensor, ...]] = []
    times: list[list[float]] = []
    count = len(work.programs)
    for index, (program, before) in enumerate(zip(work.programs, work.before, strict=True)):
        compute = _stage(work, program, StagePlace("profile", index, count), machine, search_dirs)
        if keeps_tensors(machine.device):
            compute.device = StayingThere(torch.device(machine.device))
        given = sent[before] if index else ()
        passed_on, taken = _timed(compute, program, given, index == count - 1, work.job.update_every, seconds / count)
        sent.append(passed_on)
        times.append(taken)
    return times


def _together_s(
    work: BenchmarkWork, machine: ComputeResources, seconds: float, search_dirs: Sequence[Path]
) -> list[float]:
    """Returns the seconds that each micro-batch took with the model's first units as one stage."""
    program, is_all = work.together.program, work.together.counts == work.counts
    compute = _stage(work, program, StagePlace("profile", 0, 1 if is_all else 2), machine, search_dirs)
    compute.device = StayingThere(torch.device(machine.device))
    return _timed(compute, program, (), is_all, work.job.update_every, seconds)[1]


def _timed(
    compute: StageCompute,
    program: StageProgram,
    received: tuple[Tensor, ...],
    is_last: bool,
    update_every: int,
    seconds: float,
) -> tuple[tuple[Tensor, ...], list[float]]:
    """Returns the tensors that the stage sends on, and the seconds that each micro-batch took."""
    needing = [spec.needs_gradient for spec in program.outputs]
    times: list[float] = []
    sent: tuple[Tensor, ...] = ()
    end_s = math.inf
    for number in range(WARM_UP_REPEATS + MOST_REPEATS):
        began_s = time.perf_counter()
        sent = compute.forward(number, received)
        gradients = (
            () if is_last else tuple(torch.ones_like(out) for out, needs in zip(sent, needing, strict=True) if needs)
        )
        _, norm_sq = compute.backward(number, gradients, ends_group=True)
        compute.device.settle()  # what is not computed yet would count as the update's time
        passed_s = time.perf_counter()
        compute.update(norm_sq)
        now_s = time.perf_counter()
        if number == WARM_UP_REPEATS - 1:
            end_s = now_s + seconds
        if number >= WARM_UP_REPEATS:
            times.append(passed_s - began_s + (now_s - passed_s) / update_every)
            if now_s >= end_s and len(times) >= LEAST_REPEATS:
                break
    return sent, times


def _stage(
    work: BenchmarkWork,
    program: StageProgram,
    place: StagePlace,
    machine: ComputeResources,
    search_dirs: Sequence[Path],
) -> StageCompute:
    optimizer = work.job.optimizer.model_dump() | {"lr": _LEARNING_RATE, "schedule": ScheduleConfig()}
    optimizer["groups"] = [group | {"lr": None} for group in optimizer["groups"]]
    # Each micro-batch makes an update here, whose time is then shared out as the job shares it.
    job = work.job.model_copy(update={"update_every": 1, "optimizer": OptimizerConfig(**optimizer)})
    setup = StageSetup(
        place=place,
        bounds=StageBounds(window=1, largest_window=1, recomputes=job.activation_checkpointing == "always"),
        evaluation=EvaluationSetup(job.micro_batch, short_last=False),
        job=job,
        code=UserCode(work.job_file, tuple(str(path) for path in search_dirs)),
        program=program,
        segments=(),
        machine=machine,
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
