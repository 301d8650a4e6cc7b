"""The work with which a machine's speed is measured: captured units of a model, cut into spans that fit its memory.

Goes in: a job, or none; then a small transformer in float32 stands for it (4 layers of width 512 with 8 heads over 128
tokens, feed-forward 2048, 4 samples a micro-batch, AdamW). Comes out: `BenchmarkWork`, which is made once, where the
profile was asked for, so that the measured machines need neither the model nor the data. Its FLOPs are those that a
plan counts for it (`SpanCosts.flops`): a speed that was measured with it gives the measured time back in a plan.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from cluster_planner import SpanCosts
from ravnest.errors import InvalidInput
from ravnest.job.config import Job, job_from_mapping
from ravnest.job.materials import capture_job, first_batch, load_data, make_buffers
from ravnest.planning.workload import workload
from ravnest.splitting import CapturedModel, StageProgram
from ravnest.training.batches import arguments

MEMORY_SHARE = 0.5
"""The part of the smallest machine's free memory that a span may take."""

DESCRIPTION = "a transformer of 4 layers, width 512, 128 tokens, 4 samples a micro-batch, in float32 with AdamW"
"""The default work in words, for reports."""

LAYERS, WIDTH, HEADS, TOKENS, CLASSES = 4, 512, 8, 128, 512
_SAMPLES = 8


@dataclass(frozen=True)
class BenchmarkWork:
    """Consecutive spans of a model, with all that they read except their parameters, whose values do not matter."""

    job: Job
    job_file: str
    programs: tuple[StageProgram, ...]
    flops: float
    """FLOPs of one micro-batch through all spans: forward, backward and its share of an update."""
    inputs: tuple[Tensor, ...]
    """The first micro-batch, in the order in which the first span takes it."""
    target: Tensor
    buffers: dict[str, Tensor]


def work_of(job: Job, job_file: str | Path, free_bytes: int) -> BenchmarkWork:
    """Capture the job's model and cut it into spans for machines that have `free_bytes` of memory.

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
    """The longest spans of units that need at most `memory_bytes` each with one micro-batch in flight.

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
    return {name: made[name] for name in captured.train.converted.buffers if name in made}


def benchmark_job() -> Job:
    """The job of the default work, whose factories are this module's."""
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
    """The model factory of the default work."""
    return BenchmarkModel()


@dataclass(frozen=True)
class BenchmarkData:
    """The datasets of the default work."""

    train: TensorDataset
    held_out: TensorDataset


def benchmark_data() -> BenchmarkData:
    """The data factory of the default work: a few samples of seeded noise."""
    chance = torch.Generator().manual_seed(0)
    inputs = torch.randn(_SAMPLES, TOKENS, WIDTH, generator=chance)
    targets = torch.randint(0, CLASSES, (_SAMPLES,), generator=chance)
    return BenchmarkData(TensorDataset(inputs, targets), TensorDataset(inputs[:1], targets[:1]))
