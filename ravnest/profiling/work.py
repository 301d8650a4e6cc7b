"""The work that a machine's speed is measured with: a job's captured units, cut into spans that fit its memory.

Made once, where the profile was asked for; the machines need neither the model nor the data. What its FLOPs come to is
what a plan would count for it (SpanCosts.flops), so that the measured speed, put into a plan, gives the measured time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from cluster_planner import SpanCosts
from ravnest.errors import InvalidInput
from ravnest.job.config import Job
from ravnest.job.materials import capture_job, first_batch, load_data, make_buffers
from ravnest.planning.workload import workload
from ravnest.splitting import CapturedModel, StageProgram
from ravnest.training.batches import arguments

MEMORY_SHARE = 0.5
"""Of the smallest machine's free memory, that a span may take."""


@dataclass(frozen=True)
class Work:
    """Spans one after the other, with all that they read but their parameters, whose values do not matter."""

    job: Job
    job_file: str
    programs: tuple[StageProgram, ...]
    flops: float
    """Of one micro-batch through all of them: forward, backward and its share of an update."""
    inputs: tuple[Tensor, ...]
    """The first micro-batch, as the first span takes it."""
    target: Tensor
    buffers: dict[str, Tensor]


def work_of(job: Job, job_file: str | Path, free_bytes: int) -> Work:
    """Captures the job's model. Raises InvalidInput for a job that `ravnest plan` would refuse, too, and where no
    machine of `free_bytes` could hold one of its units."""
    data = load_data(job, job_file)
    inputs, target = first_batch(job, job_file, data)
    captured = capture_job(job, job_file, data)
    costs = SpanCosts(captured.costs, workload(job))
    spans = spans_within(costs, round(MEMORY_SHARE * free_bytes))
    programs = tuple(captured.span(*span) for span in spans)
    recomputes = job.activation_checkpointing == "always"
    return Work(
        job=job,
        job_file=str(job_file),
        programs=programs,
        flops=sum(costs.flops(*span, recomputes=recomputes) for span in spans),
        inputs=_in_order(inputs, programs[0]),
        target=target,
        buffers=_buffers(job, job_file, captured),
    )


def spans_within(costs: SpanCosts, memory_bytes: int) -> Sequence[tuple[int, int]]:
    """The units in spans as long as can be that need at most `memory_bytes` with one micro-batch. Raises InvalidInput
    naming a unit that alone needs more."""
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
    return {name: made[name] for name in captured.train.converted.buffers if name in made}
