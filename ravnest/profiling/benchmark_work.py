"""The work that a machine's speed is measured with: a job's captured units, cut into spans that fit its memory.

Made once, where the profile was asked for; the machines need neither the model nor the data. What its FLOPs come to is
what a plan would count for it (SpanCosts.flops), so that the measured speed, put into a plan, gives the measured time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from cluster_planner.inputs.spans import SpanCosts
from ravnest.errors import InvalidInput
from ravnest.job.config import JobConfig, job_from_mapping
from ravnest.job.materials import capture_job, first_batch, load_data, make_buffers
from ravnest.planning.workload import workload
from ravnest.splitting import CapturedModel, StageProgram
from ravnest.training.batches import arguments

MEMORY_SHARE = 0.5
"""Of the smallest machine's free memory, that a span may take."""


@dataclass(frozen=True)
class Work:
    """Spans one after the other, with all that they read but their parameters, whose values do not matter."""

    job: JobConfig
    job_file: str
    programs: tuple[StageProgram, ...]
    flops: float
    """Of one micro-batch through all of them: forward, backward and its share of an update."""
    inputs: tuple[Tensor, ...]
    """The first micro-batch, as the first span takes it."""
    target: Tensor
    buffers: dict[str, Tensor]


def work_of(job: JobConfig, job_file: str | Path, free_bytes: int) -> Work:
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


def _buffers(job: JobConfig, job_file: str | Path, captured: CapturedModel) -> dict[str, Tensor]:
    made = make_buffers(job, job_file)
    return {name: made[name] for name in captured.train.converted.buffers if name in made}


WORDS = "a transformer of 4 layers, width 512, 128 tokens, 4 samples a micro-batch, in float32 with AdamW"
LAYERS, WIDTH, HEADS, TOKENS, CLASSES = 4, 512, 8, 128, 512
_SAMPLES = 8


def job() -> JobConfig:
    """A job like any other: its factories are this module's."""
    return job_from_mapping(
        {
            "model": {"factory": f"{__name__}:model"},
            "data": {"factory": f"{__name__}:data"},
            "micro_batch": 4,
            "update_every": 8,
            "optimizer": {"name": "adamw", "lr": 1e-4},
            "stop": {"samples": 1024},
        }
    )


class Model(nn.Module):
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


def model() -> nn.Module:
    return Model()


@dataclass(frozen=True)
class Data:
    train: TensorDataset
    held_out: TensorDataset


def data() -> Data:
    chance = torch.Generator().manual_seed(0)
    inputs = torch.randn(_SAMPLES, TOKENS, WIDTH, generator=chance)
    targets = torch.randint(0, CLASSES, (_SAMPLES,), generator=chance)
    return Data(TensorDataset(inputs, targets), TensorDataset(inputs[:1], targets[:1]))
