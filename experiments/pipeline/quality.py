"""What stale gradients cost in quality, and what corrections give back: the tables behind the default correction.

Three parts. `run_staleness`: at the staleness of 1 that double-buffered weights have at every stage, held-out loss
against synchronous training with the same update batches and samples, rates tuned for each. `run_depth`: updates to
reach a loss with 1, 8, 16 and 32 stages that update at each micro-batch. `run_blocks`: the loss of a deeper GPT with
delays of 7 to 0 updates. All by delays.py, which computes what the stages compute; no figure here is a timing.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.harness.report import ROOT, Cell, Claim, Panel, Part, Series, Table
from experiments.pipeline.tasks import SHAKESPEARE, Characters, Digits, Task
from experiments.pipeline.trials import Book, Outcome, Trial

BOOK = ROOT / "runs" / "experiments" / "pipeline" / "trials.jsonl"
WARMUP = {"warmup_updates": 100}
OPTIMIZERS: Mapping[str, Mapping[str, object]] = {
    "AdamW": {"name": "adamw"},
    "SGD, momentum 0.9": {"name": "sgd", "momentum": 0.9},
    "NAdam": {"name": "nadam"},
    "SOAP": {"name": "soap"},
}
CORRECTED = "look_ahead"
BY_DEPTH: Mapping[str, Mapping[str, object]] = {
    "AdamW, none": {"name": "adamw", "correction": "none"},
    "AdamW, look_ahead": {"name": "adamw", "correction": CORRECTED},
    "SOAP, look_ahead": {"name": "soap", "correction": CORRECTED},
}
LOSS_WITHIN, POINTS_WITHIN, UPDATES_WITHIN = 0.01, 0.5, 1.5
DEPTHS = (1, 8, 16, 32)
BLOCKS, BLOCK_UPDATES, BLOCK_RATE = 8, 1500, 1e-3
BLOCK_RATES = (BLOCK_RATE, 2e-3)
BLOCKS_WITHIN = 1.97 / 1.93 - 1
"""Of a GPT of 8 blocks: 1.93 nats is what synchronous AdamW had in the simulation of docs/algorithms/pipeline.md."""
STUDENT_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""The 97.5 % point of Student's t with 1, 2, … degrees of freedom."""


@dataclass(frozen=True)
class Sizes:
    """How much is trained."""

    characters: Characters
    updates: int
    digit_updates: int
    seeds: int
    digit_seeds: int
    rates: Mapping[str, Sequence[float]]
    digit_rates: Mapping[str, Sequence[float]]
    depth_updates: int
    depth_rates: Sequence[float]
    longest: int
    """How many times the updates of depth 1 a deeper pipeline is given."""


def sizes(*, quick: bool) -> Sizes:
    """Those of the report, or small ones that only show that all of it runs."""
    if quick:
        rates: dict[str, Sequence[float]] = {"SGD, momentum 0.9": (0.1,), "AdamW": (0.004,), "NAdam": (0.004,)}
        rates["SOAP"] = (0.004,)
        small = Characters(SHAKESPEARE if SHAKESPEARE.exists() else ROOT / "README.md", 1, 16, 16, 4)
        return Sizes(small, 12, 6, 2, 2, rates, rates, 20, (0.004,), 2)
    rates = dict.fromkeys(OPTIMIZERS, (0.004, 0.0056, 0.008, 0.0112))
    rates["SGD, momentum 0.9"] = (0.1, 0.14, 0.2, 0.28, 0.4)
    digit_rates: dict[str, Sequence[float]] = {
        "SOAP": (0.003,),
        "SGD, momentum 0.9": (0.05,),
        "AdamW": (0.003,),
        "NAdam": (0.003,),
    }
    characters = Characters(SHAKESPEARE, layers=2, width=32, context=32, batch=16)
    return Sizes(characters, 3000, 400, 10, 10, rates, digit_rates, 4000, (0.004, 0.008, 0.002, 0.001), 3)


def run_staleness(name: str, *, quick: bool, book: Path = BOOK) -> Part:
    """Staleness 1 at every stage against none, with one of OPTIMIZERS."""
    size, kept = sizes(quick=quick), Book(book)
    optimizer = OPTIMIZERS[name]
    rows: list[list[Cell]] = []
    characters = _compare(kept, size.characters, optimizer, size.rates[name], size.updates, size.seeds)
    plain, *others = characters.items()
    for way, outcomes in others:
        change = [100 * (b.loss / a.loss - 1) for a, b in zip(plain[1], outcomes, strict=True)]
        rows.append(["characters", way, _mean(plain[1]), _mean(outcomes), interval(change, "%")])
    claims = [
        Claim(
            "characters",
            f"{name}: held-out loss after {size.updates} updates with staleness 1 and {CORRECTED}, over synchronous",
            f"<= {LOSS_WITHIN:.0%} more (upper end of the 95 % interval)",
            interval(change, "%"),
            _bound(change) <= 100 * LOSS_WITHIN if math.isfinite(_bound(change)) else None,
        )
    ]
    series = Series(name, [way for way, _ in others], [_mean(found) / _mean(plain[1]) - 1 for _, found in others])
    digits = _compare(kept, Digits(), optimizer, size.digit_rates[name], size.digit_updates, size.digit_seeds)
    plain, *others = digits.items()
    for way, outcomes in others:
        points = [b.accuracy - a.accuracy for a, b in zip(plain[1], outcomes, strict=True)]
        accuracy = [statistics.fmean(outcome.accuracy for outcome in each) for each in (plain[1], outcomes)]
        rows.append(["digits", way, *accuracy, interval(points, "points")])
    claims.append(
        Claim(
            "digits",
            f"{name}: accuracy with staleness 1 and {CORRECTED}, against synchronous, {size.digit_seeds} seeds",
            f">= −{POINTS_WITHIN} points (mean)",
            interval(points, "points"),
            statistics.fmean(points) >= -POINTS_WITHIN,
        )
    )
    columns = ["task", "correction", "synchronous", "staleness 1", "difference, 95 % interval over seeds"]
    return Part(
        part_of(name),
        f"Quality at a staleness of 1: {name}",
        claims,
        [Table("Held-out loss (nats) or accuracy (%); rates tuned for each", columns, rows)],
        [Panel(f"{name}, staleness 1", "correction", "loss over synchronous − 1", [series], target=LOSS_WITHIN)],
        [
            f"{size.characters.name}; {size.updates} updates, {size.seeds} seeds. {Digits().name}; "
            f"{size.digit_updates} updates, {size.digit_seeds} seeds.",
            f"These trainings took {_minutes(characters, digits):.0f} minutes of one core. Finished ones are kept in "
            f"{BOOK.relative_to(ROOT)} and not repeated, so the part itself may have taken less.",
            kept.trained_by,
        ],
    )


def part_of(optimizer: str) -> str:
    """The name of its part in the report."""
    return "quality_" + optimizer.split(",")[0].lower()


def run_depth(*, quick: bool, book: Path = BOOK) -> Part:
    """More and more stages that update at each micro-batch."""
    size, kept = sizes(quick=quick), Book(book)
    schedule = {"name": "constant", **WARMUP}
    base = Trial(size.characters, {"schedule": schedule}, size.depth_updates, stages=1, every=10 if quick else 50)

    def trained(optimizer: Mapping[str, object], lr: float, **changes: Any) -> Outcome:
        return kept.outcome(replace(base, optimizer={**base.optimizer, **optimizer, "lr": lr}, **changes))

    plain = [trained({"name": "adamw", "correction": "none"}, lr) for lr in size.depth_rates]
    best = min(plain, key=lambda outcome: outcome.loss)
    target = min(loss for update, loss in best.curve if update <= size.depth_updates // 2)
    rows: list[list[Cell]] = []
    claims, series = [], []
    for way, optimizer in BY_DEPTH.items():
        needed: dict[int, int | None] = {}
        for depth in DEPTHS:
            needed[depth], given = None, size.longest * (needed.get(1) or size.depth_updates)
            for lr in size.depth_rates:
                # No rate needs longer than the best one so far did.
                found = trained(optimizer, lr, stages=depth, updates=given, until=target).reached(target)
                if found is not None:
                    needed[depth] = given = found
        first = needed[1]
        seen = {depth: updates / first for depth, updates in needed.items() if updates is not None and first}
        rows += [[way, depth, needed[depth], seen.get(depth)] for depth in DEPTHS]
        series.append(Series(way, list(seen), list(seen.values())))
        last = seen.get(DEPTHS[-1])
        claims.append(
            Claim(
                way,
                f"{way}: updates to {target:.3f} nats held out with {DEPTHS[-1]} stages over those with one",
                "none: it is what to beat" if optimizer["correction"] == "none" else f"<= {UPDATES_WITHIN}",
                f"not reached in {size.longest} times as many" if last is None else f"{last:.2f}",
                None if optimizer["correction"] == "none" else last is not None and last <= UPDATES_WITHIN,
            )
        )
    return Part(
        "depth",
        "Stages that update at each micro-batch",
        claims,
        [Table("Updates to the target, best of all rates", ["optimizer", "stages", "updates", "over one stage"], rows)],
        [Panel("Depth", "stages", "updates over one stage", series, log_x=True, target=UPDATES_WITHIN)],
        [f"{size.characters.name}; a constant rate after a warm-up, best of {size.depth_rates}.", kept.trained_by],
    )


def run_blocks(*, quick: bool, book: Path = BOOK) -> Part:
    """A GPT of one block for each stage, whose first is as many updates late as others follow it."""
    kept, task = Book(book), Characters(SHAKESPEARE, BLOCKS, 64, 64, 16)
    updates, rates = BLOCK_UPDATES, BLOCK_RATES
    if quick:
        task, updates, rates = sizes(quick=True).characters, 12, BLOCK_RATES[:1]
    schedule = {"name": "cosine", "warmup_updates": min(100, updates // 4)}

    def trained(optimizer: Mapping[str, object], lr: float, stages: int) -> float:
        return kept.outcome(Trial(task, {**optimizer, "lr": lr, "schedule": schedule}, updates, stages=stages)).loss

    plain = trained({"name": "adamw", "correction": "none"}, BLOCK_RATE, 1)
    rows: list[list[Cell]] = [["AdamW", 1, BLOCK_RATE, plain, 0.0]]
    claims = []
    for way, optimizer in BY_DEPTH.items():
        losses = {lr: trained(optimizer, lr, BLOCKS) for lr in rates}
        best = min(losses, key=losses.__getitem__)
        above = losses[best] / plain - 1
        rows.append([way, BLOCKS, best, losses[best], above])
        if optimizer["correction"] != "none":
            claims.append(
                Claim(
                    way,
                    f"{way}: held-out loss after {updates} updates with delays {BLOCKS - 1}…0, over synchronous AdamW",
                    f"<= {BLOCKS_WITHIN:.1%} more",
                    f"{above:+.1%}: {losses[best]:.3f} nats, {plain:.3f} without delays",
                    above <= BLOCKS_WITHIN,
                )
            )
    columns = ["optimizer", "stages", "best rate", "held-out loss", "over synchronous AdamW"]
    return Part(
        "blocks",
        "A GPT of 8 blocks, a stage each",
        claims,
        [Table("Loss after the same samples", columns, rows)],
        notes=[
            f"{task.name}; {updates} updates, one seed, rates {rates}; without delays {BLOCK_RATE}.",
            kept.trained_by,
        ],
    )


def _compare(
    kept: Book, task: Task, optimizer: Mapping[str, object], rates: Sequence[float], updates: int, seeds: int
) -> dict[str, list[Outcome]]:
    """By way of training, synchronous first: the outcomes of all seeds at the rate that is best for seed 0."""
    schedule = {"name": "cosine", "warmup_updates": min(100, updates // 4)}
    ways: Mapping[str, Callable[[Trial], Trial]] = {
        "synchronous": lambda trial: trial,
        "none": lambda trial: replace(trial, delay=1, optimizer={**trial.optimizer, "correction": "none"}),
        CORRECTED: lambda trial: replace(trial, delay=1, optimizer={**trial.optimizer, "correction": CORRECTED}),
    }
    found = {}
    for way, change in ways.items():

        def trained(lr: float, seed: int, change: Callable[[Trial], Trial] = change) -> Outcome:
            return kept.outcome(change(Trial(task, {**optimizer, "lr": lr, "schedule": schedule}, updates, seed)))

        best = min(rates, key=lambda lr: trained(lr, 0).loss)
        found[way] = [trained(best, seed) for seed in range(seeds)]
    return found


def _minutes(*compared: Mapping[str, Sequence[Outcome]]) -> float:
    """Of the seeds that are reported; the search for rates comes on top."""
    return sum(outcome.seconds for ways in compared for outcomes in ways.values() for outcome in outcomes) / 60


def _mean(outcomes: Sequence[Outcome]) -> float:
    return statistics.fmean(outcome.loss for outcome in outcomes)


def margin(values: Sequence[float]) -> float:
    """Half the 95 % interval of their mean, by Student's t."""
    spread = statistics.stdev(values) / math.sqrt(len(values))
    return STUDENT_975[len(values) - 2] * spread


def _bound(values: Sequence[float]) -> float:
    return statistics.fmean(values) + margin(values)


def interval(values: Sequence[float], unit: str) -> str:
    """Their mean and half its 95 % interval, in words."""
    return f"{statistics.fmean(values):+.2f} ± {margin(values):.2f} {unit}"
