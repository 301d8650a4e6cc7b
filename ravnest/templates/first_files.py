"""Writes the first files of a job into a folder.

In: `Answers`. Out: four files, and no file is replaced. model.py and data.py are those of one of `KINDS`, as they lie
beside this module; job.yaml and nodes.yaml are made from the answers, with a comment for each line that a user changes
first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster_planner import hardware_named, require_node_name
from ravnest.errors import InvalidInput

_HERE = Path(__file__).parent
_JOB = """\
# {about}
model: {{factory: "model:make"{model}}}
data: {{factory: "data:make"}}
loss: {loss}
{metrics}{micro_batch}# samples that a stage computes at once
{update_every}# micro-batches of one optimizer step
optimizer: {{name: adamw, lr: {lr}, schedule: {{name: constant, warmup_updates: 10}}}}
{max_staleness}# how old a gradient may be, in optimizer steps
{average_every}# samples of all machines between two averagings
stop: {{minutes: {minutes:g}}}
evaluate_every: {evaluate_every}
seed: 0
# All keys: `ravnest explain optimizer`, and docs/file-formats.md.
"""
_NODES = """\
# The machines. `hardware` stands for figures that nobody has measured yet: `ravnest profile --job job.yaml --merge`
# writes gflops and memory_gb in its place. up_mbps and down_mbps are what a machine sends and receives at home.
{small}nodes:
{nodes}"""
_SMALL = """\
# `gflops` is assumed, for whatever hardware: a model as small as this one takes some {ms:g} ms a micro-batch.
"""


ROUNDS_APART = 4.0
"""Rounds of averaging begin so many times as far apart as one takes on its links: machines that wait for averages are
of no use, and the planner leaves them out."""
FEWEST_ROUNDS = 10
ROUNDS_OF_EVALUATION = 2
_ROUND_LATENCY_S = 0.2
"""What a round takes beside its bytes, over links of which nothing is known."""
_LEAST_ROUND = 256

MICRO_BATCHES_PER_S = 100
"""The most that a stage is assumed to make. Calls of operators and messages take their time however small the model is
and however fast the hardware; the planner knows of none of it, and a run at its figures would see no round at all."""


@dataclass(frozen=True)
class Kind:
    """What is to be learned, and how job.yaml says it."""

    about: str
    gflop_per_sample: float
    """Forward and backward, as the planner counts them; about."""
    weights_mb: float
    micro_batch: int
    job: Mapping[str, object]


KINDS: Mapping[str, Kind] = {
    "text": Kind(
        "A small GPT learns to go on with a text, character by character.",
        0.195,
        1.91,
        4,
        {"model": ", args: {layers: 4, width: 96}", "loss": "cross_entropy", "metrics": "", "lr": "2.0e-3"},
    ),
    "images": Kind(
        "A convolutional network learns to name pictures.",
        0.0036,
        0.155,
        16,
        {"model": ", args: {width: 24}", "loss": "cross_entropy", "metrics": "metrics: [accuracy]\n",
         "lr": "3.0e-3"},
    ),
    "numbers": Kind(
        "A perceptron learns a number from a row of numbers.",
        0.00041,
        0.273,
        16,
        {"model": ", args: {width: 256}", "loss": "mse", "metrics": "", "lr": "3.0e-3"},
    ),
}  # fmt: skip
"""By name: what `ravnest init` can begin with."""


@dataclass(frozen=True)
class Answers:
    """What `ravnest init` asks. `hardware` has one name for each machine, or one for all of them."""

    kind: str
    machines: Sequence[str]
    hardware: Sequence[str]
    mbps: float
    """What each machine sends and receives, in Mbit/s."""
    minutes: float

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidInput(f"must be {' or '.join(KINDS)}, not {self.kind!r}", key="kind")
        if not self.machines or len(set(self.machines)) < len(self.machines) or not all(self.machines):
            raise InvalidInput("expected names, each once, separated by commas", key="machines")
        for name in self.machines:
            require_node_name(name, key="machines")
        if len(self.hardware) not in (1, len(self.machines)):
            raise InvalidInput(
                f"expected one name for all, or one for each of the {len(self.machines)} machines, "
                f"not {len(self.hardware)}",
                key="hardware",
            )
        for name in self.hardware:
            try:
                hardware_named(name)
            except ValueError as error:
                said = str(error).removesuffix("; or give gflops and memory_gb")
                raise InvalidInput(said, key="hardware") from None
        for key in ("mbps", "minutes"):
            if not 0 < getattr(self, key) < 1e6:
                raise InvalidInput(f"expected a number above 0, not {getattr(self, key):g}", key=key)


def write_first_files(folder: Path, answers: Answers) -> list[Path]:
    """Write the files, and return where they are. Raises InvalidInput where one is there already."""
    kind = KINDS[answers.kind]
    hardware = answers.hardware if len(answers.hardware) > 1 else [*answers.hardware] * len(answers.machines)
    rate = f"up_mbps: {answers.mbps:g}, down_mbps: {answers.mbps:g}"
    speeds = [_gflops(kind, has) for has in hardware]
    slower = [gflops < hardware_named(has).gflops for gflops, has in zip(speeds, hardware, strict=True)]
    rows = "".join(
        f"  - {{name: {json.dumps(name)}, hardware: {json.dumps(has)}, {f'gflops: {gflops:.3g}, ' * less}{rate}}}\n"
        for name, has, gflops, less in zip(answers.machines, hardware, speeds, slower, strict=True)
    )
    require_free(folder)
    every = _round_samples(kind, sum(speeds) / kind.gflop_per_sample, answers)
    small = _SMALL.format(ms=1e3 / MICRO_BATCHES_PER_S) if any(slower) else ""
    texts = {
        "job.yaml": _JOB.format(
            about=kind.about,
            minutes=answers.minutes,
            **_before_comments(micro_batch=kind.micro_batch, update_every=4, max_staleness=1, average_every=every),
            evaluate_every=ROUNDS_OF_EVALUATION * every,
            **kind.job,
        ),
        "nodes.yaml": _NODES.format(small=small, nodes=rows),
        **{f"{name}.py": (_HERE / answers.kind / f"{name}.txt").read_text(encoding="utf-8") for name in _OF_KIND},
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"cannot be written ({error.strerror or error})", path=str(folder)) from None
    return [folder / name for name in texts]


def _before_comments(**values: int) -> dict[str, str]:
    """The lines of keys that a comment follows, each as long as the others, so that the comments line up."""
    lines = {key: f"{key}: {value}" for key, value in values.items()}
    width = max(map(len, lines.values())) + 2
    return {key: line.ljust(width) for key, line in lines.items()}


def _gflops(kind: Kind, hardware: str) -> float:
    """What such a machine sustains on such a model, as far as it can be told before anybody has measured."""
    return min(hardware_named(hardware).gflops, MICRO_BATCHES_PER_S * kind.micro_batch * kind.gflop_per_sample)


def _round_samples(kind: Kind, samples_per_s: float, answers: Answers) -> int:
    """An average_every with which all machines train: a power of two, and at least FEWEST_ROUNDS rounds.

    On a machine that is several times slower than was said, such as the one on which the files are tried first, there
    are some rounds still.
    """
    round_s = 2 * 8 * kind.weights_mb / answers.mbps + _ROUND_LATENCY_S
    apart_s = min(ROUNDS_APART * round_s, 60 * answers.minutes / FEWEST_ROUNDS)
    return max(_LEAST_ROUND, 1 << max(0, math.floor(math.log2(apart_s * samples_per_s))))


def require_free(folder: Path) -> None:
    """Raises InvalidInput where a file would be replaced, or the folder cannot be one."""
    there = [name for name in _FILES if (folder / name).exists()]
    if there:
        raise InvalidInput(f"{there[0]} is there already", path=str(folder), hint="name another folder")
    if folder.exists() and not folder.is_dir():
        raise InvalidInput("is a file; expected a folder", path=str(folder))


_OF_KIND = ("model", "data")
_FILES = ("job.yaml", "nodes.yaml", *(f"{name}.py" for name in _OF_KIND))
