"""Members who lie: what eight clusters learn when one or two of them send something else than they have made.

In: a GPT on characters and a convolutional network on digits, trained by eight clusters that average what each has
changed. Out: held-out losses beside those of eight honest clusters that take the mean, and when liars were found.

The averages are those of a robust ring (ring_allreduce/ring/robust_mean.py), and who is shut out is decided by the
driver's rule from what the members see (ravnest/driver/liars.py). No network is used.
"""

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from experiments.harness.report import ROOT, Cell, Claim, Part, Table
from experiments.pipeline.tasks import SHAKESPEARE, Characters, Digits, Task
from experiments.wire.averaging import CLUSTERS, LR, ROUND_UPDATES, trained_in_rounds
from ravnest.driver.liars import LiarWatch
from ravnest.pipeline import stage_name, stage_place
from ravnest.stage.epoch_messages import ContributionsSeen
from ring_allreduce.ring import ROBUST_RULES, RobustRule
from ring_allreduce.ring.robust_mean import Sums, robust_mean

LIARS = (1, 2)
MOST = 0.02
ROUNDS = {"characters": 24, "digits": 12}
SEEDS = {"characters": range(1), "digits": range(3)}
"""Digits end near a loss of 0.04, where seeds differ much."""
CHUNK = 65536

Lie = Callable[[Tensor, int, int], Tensor]
"""What a liar sends instead of its progress, in a round; the last number is the liar's own seed."""


def _direction(like: Tensor, seed: int) -> Tensor:
    drawn = torch.randn(like.shape, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(drawn, dim=0)


LIES: Mapping[str, Lie] = {
    "sign flip": lambda progress, _, __: -progress,
    "noise": lambda progress, number, seed: 10.0 * progress.norm() * _direction(progress, 1000 * seed + number),
    "scaled": lambda progress, _, __: 20.0 * progress,
    "drifting": lambda progress, number, seed: progress + 0.25 * number * progress.norm() * _direction(progress, seed),
}


@dataclass(frozen=True)
class Trained:
    """What came of one training."""

    loss: float
    shut_out: Mapping[int, int]
    """By cluster that was shut out: after which round."""


def trained(task: Task, rule: RobustRule | None, lie: Lie | None, liars: int, seed: int, rounds: int) -> Trained:
    """Train from `seed`; the first `liars` clusters send what `lie` makes of what they have made, or have no part where
    there is no lie."""
    watch, shut_out = LiarWatch(lambda stage: stage_place(stage)[0]), dict[int, int]()

    def merged(number: int, parts: dict[int, Tensor]) -> Tensor:
        for index in range(liars):
            if lie is not None and index in parts:
                parts[index] = lie(parts[index], number, 1 + CLUSTERS * seed + index)
        average = _averaged(rule, parts, watch, number)
        for stage, *_ in watch.found():
            index = int(stage_place(stage)[0].removeprefix("c"))
            shut_out[index] = number
            del parts[index]
        return average

    taking_part = range(0 if lie is not None else liars, CLUSTERS)
    anchor = trained_in_rounds(task, seed, taking_part, rounds, merged)
    return Trained(task.held_out_loss(anchor, whole=True), shut_out)


def _averaged(rule: RobustRule | None, parts: Mapping[int, Tensor], watch: LiarWatch, number: int) -> Tensor:
    """The average of a round, chunk by chunk, and what each member says that it has seen."""
    if rule is None:
        return torch.stack(list(parts.values())).mean(0)
    sums, weights = [Sums() for _ in parts], [1.0] * len(parts)
    chunks = zip(*(torch.split(part, CHUNK) for part in parts.values()), strict=True)
    average = [robust_mean(rule, each, weights, sums) for each in chunks]
    names = [stage_name(f"c{index}", 0) for index in parts]
    figures = {name: astuple(each.figures(1.0)) for name, each in zip(names, sums, strict=True)}
    for name in names:
        watch.saw(name, ContributionsSeen(round=number, ring=0, epoch=0, members=figures, digests={}), names)
    watch.committed(number)
    return torch.cat(average)


def run(part: str, name: str, *, quick: bool) -> Part:
    """Train the task of that name with each lie, number of liars and rule, with the same seeds. `part`: its name."""
    torch.set_num_threads(1)
    text = ROOT / "README.md" if quick else SHAKESPEARE
    every: dict[str, Callable[[], Task]] = {
        "digits": lambda: Digits(batch=16),
        "characters": lambda: Characters(text, layers=2, width=32, context=32, batch=16),
    }
    tasks = {name: every[name]()}
    seeds = dict.fromkeys(SEEDS, range(1)) if quick else SEEDS
    rounds = dict.fromkeys(ROUNDS, 1) if quick else ROUNDS
    lies, counts = ({"sign flip": LIES["sign flip"]}, LIARS[:1]) if quick else (LIES, LIARS)
    rules: Sequence[RobustRule | None] = (None, *ROBUST_RULES)
    cases: list[tuple[str, int, RobustRule | None]] = [("none", 0, None), *(("absent", each, None) for each in counts)]
    cases += [("none", 0, rule) for rule in ROBUST_RULES]
    cases += [(lie, liars, rule) for lie in lies for liars in counts for rule in rules]
    rows: list[list[Cell]] = []
    worst: dict[tuple[str, str, str], tuple[float, str]] = {}
    for name, task in tasks.items():
        fair: dict[int, list[float]] = {}
        """By how many clusters have no part: the losses of the others, who are honest and take the mean."""
        for said, liars, rule in cases:
            found = [trained(task, rule, lies.get(said), liars, seed, rounds[name]) for seed in seeds[name]]
            losses = [each.loss for each in found]
            if said in ("none", "absent") and rule is None:
                fair[liars] = losses
            apart, beside = _above(losses, fair[0]), _above(losses, fair[liars])
            out = sorted({(index, after) for each in found for index, after in each.shut_out.items()})
            told = ", ".join(f"c{index} after round {after}" for index, after in out)
            rows.append([name, said, liars, rule or "mean", statistics.fmean(losses), apart, beside, told])
            print(f"  {name} {said} {liars} {rule or 'mean'}: {apart:+.2%} {told}", file=sys.stderr, flush=True)
            if rule is not None:
                case = f"{said}, {liars} of {CLUSTERS}"
                for beside_whom, above in (("honest", apart), ("absent", beside)):
                    known = worst.get((name, rule, beside_whom), (-1.0, ""))
                    worst[name, rule, beside_whom] = max(known, (above, case))
        rows.append([name, "seeds", 0, "mean", statistics.pstdev(fair[0]), None, None, ""])
    honest_out = [row for row in rows if row[1] == "none" and row[-1]]
    than = {
        "honest": "of an honest run by the mean",
        "absent": "of a run by the mean in which the liars' clusters had no part",
    }
    claims = [
        Claim(
            f"{name}, {rule}, beside {beside_whom}",
            f"held-out loss of {name} above that {than[beside_whom]}, with {rule} and every lie",
            f"<= {MOST:.0%}",
            f"{above:+.2%} at worst ({case})",
            None if quick else above <= MOST,
        )
        for (name, rule, beside_whom), (above, case) in worst.items()
    ]
    claims.append(
        Claim(
            "nobody honest",
            "honest clusters that are shut out where nobody lies",
            "none",
            f"{len(honest_out)} trainings with some",
            not honest_out,
        )
    )
    columns = ["task", "lie", "liars", "rule", "held-out loss", "above honest", "above absent", "shut out"]
    sizes = "; ".join(f"{task.name}; {rounds[name]} rounds, {len(seeds[name])} seeds" for name, task in tasks.items())
    notes = [
        f"{sizes}. {CLUSTERS} clusters, a round after {ROUND_UPDATES} updates of each; AdamW at {LR:g}.",
        "A lie replaces what a cluster has made: noise is 10 times as long, scaled 20 times, and a drift adds a "
        "quarter of its length more in each round, in one direction. Absent: the liars have no part from the "
        "beginning, and what they could have learned from is missing, which no rule can make up for. Seeds: the "
        "standard deviation of the honest losses over the seeds.",
    ]
    return Part(part, f"Members who lie: {name}", claims, [Table("Losses", columns, rows)], notes=notes)


def _above(losses: Sequence[float], base: Sequence[float]) -> float:
    """By how much more these losses are, of the others of the same seeds, on the mean."""
    return statistics.fmean((loss - other) / other for loss, other in zip(losses, base, strict=True))
