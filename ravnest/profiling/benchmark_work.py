"""What is measured to know how fast a machine does a job's kind of work: units of the job's model, with their inputs.

In: a job, and the memory of the machines and of their cards. Out: `BenchmarkWork`. It is made once, where the profile
was asked for, so that the measured machines need neither the model nor the data: the captured units of the model, of
which all that are alike are one kind, and the model's first units together.

The default work is a small transformer in float32: 4 layers of width 512 with 8 heads over 128 tokens, feed-forward
2048, 4 samples a micro-batch, AdamW.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from cluster_planner import SpanCosts
from ravnest.errors import InvalidInput
from ravnest.job.config import Job, job_from_mapping
from ravnest.job.initial_weights import make_buffers
from ravnest.job.materials import capture_job, first_batch, load_data
from ravnest.planning.workload import workload
from ravnest.profiling.memory_traffic import UnitKind
from ravnest.splitting import CapturedModel, StageProgram
from ravnest.training.batches import Target, arguments

MEMORY_SHARE = 0.5
"""The share of the smallest machine's or card's free memory that is used."""

TOGETHER_BYTES = 8 * 10**9
"""The most memory that the units need which are run together. They need not be the whole model."""

DESCRIPTION = "a transformer of 4 layers, width 512, 128 tokens, 4 samples a micro-batch, in float32 with AdamW"
"""The default work in words, for reports."""

LAYERS, WIDTH, HEADS, TOKENS, CLASSES = 4, 512, 8, 128, 512
_SAMPLES = 8


@dataclass(frozen=True)
class FirstUnits:
    """The model's first units as one stage. `counts`: how many of them are of each kind."""

    program: StageProgram
    counts: tuple[int, ...]


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
    together: FirstUnits

    @property
    def counts(self) -> tuple[int, ...]:
        """How many units of the model are of each kind."""
        return tuple(kind.count for kind in self.kinds)


def work_of(job: Job, job_file: str | Path, free_bytes: int | None, card_bytes: Sequence[int] = ()) -> BenchmarkWork:
    """Captures the job's model and chooses one unit of each kind, for machines without cards that have `free_bytes` of
    memory (None: there are none), and for cards that have `card_bytes`.

    Raises InvalidInput for a job that `ravnest plan` would refuse, and where one of its units has no room: on a machine
    without cards, or where all have some, on any card.
    """
    data = load_data(job, job_file)
    inputs, target = first_batch(job, job_file, data)
    captured = capture_job(job, job_file, data)
    costs = SpanCosts(captured.costs, workload(job))
    if free_bytes is not None:
        require_room(costs, round(MEMORY_SHARE * free_bytes), "the smallest machine")
    else:  # a card that is fuller than others only goes unmeasured
        require_room(costs, round(MEMORY_SHARE * max(card_bytes)), "the card with the most free memory")
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
        together=_together(captured, costs, kind_of, together_bytes(costs, card_bytes or [free_bytes or 0])),
    )


def require_room(costs: SpanCosts, memory_bytes: int, whose: str) -> None:
    """Raises InvalidInput naming a unit that needs more than `memory_bytes` with one micro-batch in flight. `whose`
    memory that is, in words."""
    for unit in range(costs.count):
        needed = costs.memory_bytes(unit, unit + 1, 1)
        if needed > memory_bytes:
            raise InvalidInput(
                f"unit {unit} of the model needs {needed / 1e9:.2g} GB, and {whose} spares"
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


def together_bytes(costs: SpanCosts, card_bytes: Sequence[int]) -> int:
    """Returns the memory that units may need which are run together on any of the cards. A card that does not hold each
    unit by itself is not counted: others are in its memory, and it cannot be measured."""
    largest = max(costs.memory_bytes(unit, unit + 1, 1) for unit in range(costs.count))
    enough = [share for free in card_bytes if (share := round(MEMORY_SHARE * free)) >= largest]
    return min([TOGETHER_BYTES, *enough])


def _together(captured: CapturedModel, costs: SpanCosts, kind_of: Sequence[int], memory_bytes: int) -> FirstUnits:
    """Returns as many of the first units as this memory holds with one micro-batch in flight, and one at least."""
    end = 1
    while end < costs.count and costs.memory_bytes(0, end + 1, 1) <= memory_bytes:
        end += 1
    kinds = range(max(kind_of) + 1)
    return FirstUnits(captured.span(0, end), tuple(kind_of[:end].count(kind) for kind in kinds))


def _in_order(inputs: tuple[Tensor, ...] | dict[str, Tensor], first: StageProgram) -> tuple[Tensor, ...]:
    by_position, by_name = arguments(inputs)
    return (*by_position, *(by_name[spec.name] for spec in first.inputs[len(by_position) :]))


def _buffers(job: Job, job_file: str | Path, captured: CapturedModel) -> dict[str, Tensor]:
    made = make_buffers(job, job_file)
    names = (*captured.train.converted.buffers, *(spec.name for spec in captured.loss_buffers))
    return {name: made[name] for name in names if name in made}


DEFAULT_JOB_FILE = Path(__file__).parent / "default_work" / "job.yaml"
"""It is not there, nor is its folder. The folder of a job's file is searched for modules before Python's own, and this
package's folder would hide Python's `profile`."""


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
