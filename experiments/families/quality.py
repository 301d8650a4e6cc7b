"""Why a run of several clusters ends above a plain loop with as many samples an update, and which rate mends it.

In: four families, each trained in several ways that differ in one thing. Out: their held-out losses and what they say.

A cluster with an adaptive optimizer divides the mean gradient g of B samples by the root of its second moment, which is
g² + σ²/B with noise of variance σ² a sample. Averaging k clusters averages these quotients: the noise in the numerators
falls, but the denominators stay those of B samples. A plain loop with k·B samples divides by the root of
g² + σ²/(k·B). So at the same rate an average step is shorter by a factor between 1 (no noise) and √k (all noise).
Plain SGD divides by nothing, and has no such factor.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from experiments.families.families import MODELS
from experiments.families.trial import (
    CLUSTERS,
    MICRO_BATCH,
    RULE,
    UPDATE_SAMPLES,
    Family,
    Judge,
    after_loop,
    after_plain_loop,
    every_name,
    job_of,
    quick_plan,
    trained,
)
from experiments.harness.report import Cell, Claim, Panel, Part, Series, Table
from ravnest.job.initial_weights import make_weights
from ravnest.job.materials import capture_job, load_data

NAMES = ("DenseNet", "graph convolution", "GPT, tied", "perceptron, BatchNorm1d")
SEEDS = (3, 4)
SGD_LR = 0.1
WITHIN = 0.1
"""By so much the run may end above the plain loop with the rule, of how far the plain loop's loss has fallen."""
SAME = 0.05
"""Two ways are the same thing if their losses differ by so much of how far the plain loop's has fallen."""
SYNCHRONOUS: Mapping[str, object] = {"schedule": "1f1b", "average_every": UPDATE_SAMPLES}
"""Without staleness; a round for each update."""

PLAIN, MICRO, SMALL, FASTER = "plain, k·B", "plain, k·B, by micro-batches", "plain, B", "plain, k·B, rate·√k"
SYNC, RUN, UNCORRECTED, RARE, RULED = "synchronous", "run", "run, no look-ahead", "run, rarer rounds", "run, rate·√k"
SGD_PLAIN, SGD_SYNC = "SGD: plain, k·B, by micro-batches", "SGD: synchronous"

Way = Callable[[Family, int], float]


def run(*, quick: bool) -> Part:
    """Train each family in each way."""
    names = NAMES[1:2] if quick else NAMES
    seeds = SEEDS[:1] if quick else SEEDS
    updates = 4 if quick else 40
    torch.set_num_threads(1)
    chosen = [replace(next(f for f in MODELS if f.name == name), updates=updates) for name in names]
    found: dict[str, dict[str, float]] = {}
    for family in chosen:
        found[family.name] = {"before": _mean(_before, family, seeds)}
        for way, loss in WAYS.items():
            found[family.name][way] = value = _mean(loss, family, seeds)
            print(f"  {family.name}: {way}: {value:.4f}", file=sys.stderr, flush=True)
    return part_of(found, len(seeds), updates)


def part_of(found: Mapping[str, Mapping[str, float]], seeds: int, updates: int) -> Part:
    """What is claimed of the losses `found`, by family and way."""

    def gap(of: Mapping[str, float], way: str, other: str) -> float:
        return (of[way] - of[other]) / (of["before"] - of[PLAIN])

    def said(way: str, other: str) -> str:
        return ", ".join(f"{name} {gap(of, way, other):+.1%}" for name, of in found.items())

    def held(way: str, other: str, most: float) -> bool:
        return all(gap(of, way, other) <= most for of in found.values())

    nearer = [abs(gap(of, SYNC, SMALL)) < abs(gap(of, SYNC, PLAIN)) for of in found.values()]
    claims = [
        Claim(
            "adaptive",
            "AdamW without staleness, averaged after each update, falls as a plain loop with B samples does, not k·B",
            "nearer to B than to k·B in each family",
            f"from B: {said(SYNC, SMALL)}; from k·B: {said(SYNC, PLAIN)}",
            all(nearer),
        ),
        Claim(
            "sgd",
            "SGD without staleness, averaged after each update, is the plain loop with k·B samples",
            f"within {SAME:.0%} of the fall",
            said(SGD_SYNC, SGD_PLAIN),
            all(abs(gap(of, SGD_SYNC, SGD_PLAIN)) <= SAME for of in found.values()),
        ),
        Claim(
            "rule",
            "with the rate of a plain loop with k·B samples times √k, a run with AdamW ends no higher than that loop",
            f"at most {WITHIN:.0%} of the fall above",
            said(RULED, PLAIN),
            held(RULED, PLAIN, WITHIN),
        ),
    ]
    rows: list[list[Cell]] = [
        [way, *(cell for of in found.values() for cell in (of[way], gap(of, way, PLAIN)))] for way in (*WAYS,)
    ]
    columns = ["way", *(cell for name in found for cell in (name, "above plain, of its fall"))]
    return Part(
        "quality",
        "A run beside a plain loop with as many samples an update",
        claims,
        [Table("Held-out loss", columns, rows)],
        [
            Panel(
                "Held-out loss above the plain loop with k·B samples",
                "way",
                "of the plain loop's fall",
                [
                    Series(
                        name,
                        [way for way in WAYS if "SGD" not in way],
                        [gap(of, way, PLAIN) for way in WAYS if "SGD" not in way],
                    )
                    for name, of in found.items()
                ],
            )
        ],
        [
            f"k = {CLUSTERS} clusters; B = {UPDATE_SAMPLES // CLUSTERS} samples an update, {updates} updates of each; "
            f"means over {seeds} seeds. AdamW at 0.003, SGD at {SGD_LR}. *By micro-batches*: the plain loop's update "
            f"has micro-batches of {MICRO_BATCH}, over which batch norm takes its statistics, as a run does. "
            "*Synchronous*: schedule 1f1b and a round for each update. *Run*: asynchronous with look-ahead, a round "
            "for two updates; *rarer rounds*: for ten.",
        ],
    )


def _mean(way: Way, family: Family, seeds: tuple[int, ...]) -> float:
    return statistics.fmean(way(family, seed) for seed in seeds)


def _before(family: Family, seed: int) -> float:
    job = job_of(family, seed=seed)
    data = load_data(job, job.file)
    captured = capture_job(job, job.file, data)
    return Judge(family, job, data, captured).held_out_loss(every_name(captured, make_weights(job, job.file)))


def _by_run(rate: float = 1.0, optimizer: Mapping[str, object] | None = None, **changes: Any) -> Way:
    def way(family: Family, seed: int) -> float:
        given = {"lr": family.lr * rate, **(optimizer or {})}
        job = job_of(replace(family, job={**family.job, "optimizer": given}), seed=seed, **changes)
        data = load_data(job, job.file)
        captured = capture_job(job, job.file, data)
        weights = every_name(captured, make_weights(job, job.file))
        return trained(job, quick_plan(job, captured), captured, data, weights).reported

    return way


def _by_loop(
    rate: float = 1.0, optimizer: Mapping[str, object] | None = None, samples: int = UPDATE_SAMPLES, whole: bool = False
) -> Way:
    def way(family: Family, seed: int) -> float:
        given = {"lr": family.lr * rate, **(optimizer or {})}
        job = job_of(
            replace(family, job={**family.job, "optimizer": given}), seed=seed, update_every=samples // MICRO_BATCH
        )
        data = load_data(job, job.file)
        captured = capture_job(job, job.file, data)
        weights = every_name(captured, make_weights(job, job.file))
        if whole:
            final = after_plain_loop(family, job, data, weights)
        else:
            final = after_loop(family, job, data, weights, (0.0, 1.0), family.updates * job.update_every)
        return Judge(family, job, data, captured).held_out_loss(final)

    return way


_SGD = {"name": "sgd", "lr": SGD_LR}
WAYS: Mapping[str, Way] = {
    PLAIN: _by_loop(whole=True),
    MICRO: _by_loop(),
    SMALL: _by_loop(samples=UPDATE_SAMPLES // CLUSTERS),
    SYNC: _by_run(**SYNCHRONOUS),
    RUN: _by_run(),
    UNCORRECTED: _by_run(optimizer={"correction": "none"}),
    RARE: _by_run(average_every=10 * UPDATE_SAMPLES),
    RULED: _by_run(RULE),
    FASTER: _by_loop(RULE, whole=True),
    SGD_PLAIN: _by_loop(optimizer=_SGD),
    SGD_SYNC: _by_run(optimizer=_SGD, **SYNCHRONOUS),
}
