"""The first weights of six families of models, made by the stages of three cuts, each cut in a process of its own.

`python -m experiments.large.seeded_weights` is such a process: it is given a family, a seed and the names of each
stage's weights, notes how the model's constructor makes them, and for each stage carries out what its own weights need,
and nothing else. A digest of each weight's bytes comes back. For every weight the digests of all cuts have to be the
same; and another seed must give others, since equal constants would show nothing.
"""

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from experiments.families.families import CONVOLUTIONAL, DENSE, HUGGING_FACE, SEQUENTIAL
from experiments.families.trial import Family
from experiments.harness.report import ROOT, Claim, Part, Table
from ravnest.job.config import Job, job_from_mapping
from ravnest.job.initial_weights import WeightsFromSeed
from ravnest.job.materials import capture_job, load_data
from ravnest.splitting import Initialization

NAMES = ("perceptron, orthogonal", "perceptron, weight norm", "ResNet, batch norm", "LSTM", "GPT, tied", "Llama")
FAMILIES = {family.name: family for family in (*DENSE, *CONVOLUTIONAL, *SEQUENTIAL, *HUGGING_FACE)}
SEED, OTHER_SEED = 3, 4
LIMIT_S = 300.0
JOB_FILE = ROOT / "experiments" / "families" / "job.yaml"  # its folder alone counts


@dataclass(frozen=True)
class Compared:
    """What the cuts of one family gave."""

    family: str
    stages: Sequence[int]
    """Of each cut."""
    weights: int
    numbers: int
    differing: Sequence[str]
    """The weights of which two cuts gave other bytes."""
    drawn: int
    """The weights for which another seed gives other bytes."""


def digests(parts: Sequence[Initialization], seed: int) -> dict[str, tuple[str, int]]:
    """For each weight that these make: a digest of its type, shape and bytes, and how many numbers it has."""
    found = {}
    for part in parts:
        for name, tensor in part.make(seed).items():
            held = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
            text = f"{tensor.dtype} {tuple(tensor.shape)}".encode()
            found[name] = (hashlib.sha256(text + held).hexdigest(), tensor.numel())
    return found


def job_of(family: Family) -> Job:
    """A job with the family's model and data."""
    return job_from_mapping(
        {
            **family.job,
            "model": family.model,
            "data": family.data,
            "micro_batch": 4,
            "optimizer": {"name": "adamw", "lr": 1e-3},
            "stop": {"samples": 64},
            "seed": SEED,
        }
    )


def compared(family: Family) -> Compared:
    """Cut into one stage, into two and into three, where there are as many units."""
    job = job_of(family)
    captured = capture_job(job, JOB_FILE, load_data(job, JOB_FILE))
    weights = WeightsFromSeed(job, JOB_FILE)
    if weights.whole_because:
        raise RuntimeError(f"{family.name}: {weights.whole_because}")
    count = len(captured.units)
    cuts = [[0, count], [0, max(1, count // 2), count], [0, max(1, count // 3), max(2, count - 1), count]]
    stages = [
        [[spec.name for spec in captured.span(begin, end).weight_specs] for begin, end in pairwise(cut)] for cut in cuts
    ]
    made = [in_a_process(family.name, SEED, of_cut) for of_cut in stages]
    first, *others = made
    other = in_a_process(family.name, OTHER_SEED, stages[0])
    names = sorted({name for each in made for name in each})
    return Compared(
        family.name,
        [len(cut) - 1 for cut in cuts],
        len(first),
        sum(size for _, size in first.values()),
        [name for name in names if any(each.get(name) != first.get(name) for each in others)],
        sum(other[name] != first[name] for name in first),
    )


def in_a_process(family: str, seed: int, stages: Sequence[Sequence[str]]) -> Mapping[str, tuple[str, int]]:
    """The digests of the weights that a fresh process makes, one stage after another. Raises CalledProcessError."""
    asked = json.dumps({"family": family, "seed": seed, "stages": stages})
    command = [sys.executable, "-m", "experiments.large.seeded_weights"]
    ended = subprocess.run(command, input=asked, check=True, capture_output=True, text=True, cwd=ROOT, timeout=LIMIT_S)
    found: Mapping[str, list[str | int]] = json.loads(ended.stdout.splitlines()[-1])
    return {name: (str(digest), int(size)) for name, (digest, size) in found.items()}


def run(*, quick: bool) -> Part:
    """Compare all families, or two."""
    return part_of([compared(FAMILIES[name]) for name in (NAMES[-2:] if quick else NAMES)])


def part_of(found: Sequence[Compared]) -> Part:
    """The part of the report: pure."""
    equal = [each for each in found if not each.differing and each.drawn]
    return Part(
        "weights",
        "Weights from the seed",
        [
            Claim(
                "bit-equal",
                "families whose weights are the same bytes in three cuts, each made stage by stage in a process of its"
                " own, and other bytes with another seed",
                f"{len(found)} of {len(found)}",
                f"{len(equal)} of {len(found)}",
                len(equal) == len(found),
            )
        ],
        [
            Table(
                "By family",
                ("family", "stages of the cuts", "weights", "numbers", "that differ", "other with another seed"),
                [
                    [
                        each.family,
                        ", ".join(map(str, each.stages)),
                        each.weights,
                        each.numbers,
                        len(each.differing),
                        each.drawn,
                    ]
                    for each in found
                ],
            )
        ],
        [],
        [f"{each.family}: {', '.join(each.differing)}" for each in found if each.differing],
    )


def main() -> None:
    """Make the weights that the standard input asks for, and print their digests."""
    torch.set_num_threads(1)
    asked = json.load(sys.stdin)
    weights = WeightsFromSeed(job_of(FAMILIES[asked["family"]]), JOB_FILE)
    found = [digests(weights.only(names), asked["seed"]) for names in asked["stages"]]
    print(json.dumps({name: digest for each in found for name, digest in each.items()}))


if __name__ == "__main__":
    main()
