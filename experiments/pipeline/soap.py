"""What rotating gradients costs and gives: SOAP with both sides of a matrix, with the smaller one, and AdamW.

Cost: the step that a stage makes with the matrices and vectors of one GPT block, with look_ahead at a staleness of 1,
in processor time of one thread, and the bytes that the optimizer keeps. Learning: held-out loss after trainings of the
small GPT that are shorter than those of quality.py, paired by seeds, at a staleness of 1 and with 32 stages that update
at each micro-batch.
"""

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from experiments.harness.report import ROOT, Cell, Claim, Part, Table
from experiments.pipeline.quality import BOOK, CORRECTED, WARMUP, interval
from experiments.pipeline.tasks import SHAKESPEARE, Characters, made
from experiments.pipeline.trials import Book, Trial
from ravnest.training.corrections import corrected
from ravnest.training.optimizer import OptimizerConfig, build_optimizer

ADAMW, FULL, CHEAP = "AdamW", "SOAP, both sides", "SOAP, smaller side"
WAYS: Mapping[str, Mapping[str, object]] = {
    ADAMW: {"name": "adamw"},
    FULL: {"name": "soap", "sides": "both"},
    CHEAP: {"name": "soap", "sides": "smaller"},
}
TOKENS = 2048
"""Of the forward and backward that a step is compared with: 8 windows of 256."""

DEPTH, RATE = 32, 0.004
STATE_WITHIN, STEP_WITHIN = 1.5, 0.25


@dataclass(frozen=True)
class Sizes:
    """How wide blocks are, and how much is trained."""

    widths: tuple[int, ...]
    characters: Characters
    updates: int
    deep_updates: int
    seeds: int


@dataclass(frozen=True)
class StepCost:
    """Of one update of a block: milliseconds of a thread, a mean, and bytes of state."""

    step_ms: float
    state_bytes: int


def sizes(*, quick: bool) -> Sizes:
    """Those of the report, or small ones that only show that all of it runs."""
    text = SHAKESPEARE if SHAKESPEARE.exists() else ROOT / "README.md"
    if quick:
        return Sizes((16,), Characters(text, 1, 16, 16, 4), 12, 12, 2)
    return Sizes((128, 256), Characters(text, 2, 32, 32, 16), 600, 2000, 3)


def step_cost(optimizer: Mapping[str, object], width: int) -> StepCost:
    """What a step costs and keeps: a mean over the steps from one new basis to the next, behind the first of all."""
    draw = torch.Generator().manual_seed(1)
    parameters = dict(_block(width).named_parameters())
    gradients = [[torch.randn(p.shape, generator=draw) for p in parameters.values()] for _ in range(2)]
    config = OptimizerConfig.model_validate(dict(optimizer))
    built = build_optimizer(config, parameters.items())
    step, steps = corrected(CORRECTED, built), int(built.defaults.get("basis_every", 10))
    taken_s = []
    for update in range(1 + steps):
        for p, gradient in zip(parameters.values(), gradients[update % 2], strict=True):
            p.grad = gradient
        began_s = time.thread_time()
        step(config.lr, 1.0, update)
        taken_s.append(time.thread_time() - began_s)
    kept = sum(value.nbytes for state in built.state.values() for value in state.values() if isinstance(value, Tensor))
    return StepCost(1e3 * statistics.fmean(taken_s[1:]), kept)


def computing_ms(width: int) -> float:
    """A forward and a backward of TOKENS tokens through the block, in a thread's time: the least of three."""
    block, x = _block(width), torch.randn(8, TOKENS // 8, width)
    taken_s = []
    for _ in range(3):
        began_s = time.thread_time()
        block(x).square().mean().backward()
        taken_s.append(time.thread_time() - began_s)
    return 1e3 * min(taken_s)


def run_steps(*, quick: bool) -> Part:
    """What steps cost and keep."""
    rows: list[list[Cell]] = []
    claims = []
    for width in sizes(quick=quick).widths:
        computing = computing_ms(width)
        of = {way: step_cost(optimizer, width) for way, optimizer in WAYS.items()}
        plain, cheap = of[ADAMW], of[CHEAP]
        for way, cost in of.items():
            shares = [cost.step_ms / plain.step_ms, cost.step_ms / computing, cost.state_bytes / plain.state_bytes]
            rows.append([width, way, *(round(figure, 2) for figure in (cost.step_ms, *shares))])
        state, step = cheap.state_bytes / plain.state_bytes, cheap.step_ms / computing
        claims += [
            Claim(
                f"state, width {width}",
                f"{CHEAP}: bytes of state over AdamW's",
                f"<= {STATE_WITHIN}×",
                f"{state:.2f}×",
                state <= STATE_WITHIN,
            ),
            Claim(
                f"step, width {width}",
                f"{CHEAP}: a step over a forward and backward of {TOKENS:,} tokens",
                f"<= {STEP_WITHIN}×",
                f"{step:.2f}×",
                step <= STEP_WITHIN,
            ),
        ]
    columns = ["width", "optimizer", "ms", "over AdamW", "over forward and backward", "state over AdamW's"]
    return Part(
        "soap_steps",
        "What an update of SOAP costs, with one side rotated and with both",
        claims,
        [Table("An update of a GPT block", columns, rows)],
        notes=[
            "The time of one thread, with look_ahead at a staleness of 1; a mean over the 10 steps from one new basis "
            f"to the next. Forward and backward: {TOKENS:,} tokens in windows of {TOKENS // 8}."
        ],
    )


def run_learning(*, quick: bool, book: Path = BOOK) -> Part:
    """What short trainings reach."""
    size, kept = sizes(quick=quick), Book(book)
    base = Trial(size.characters, {"schedule": {"name": "constant", **WARMUP}, "lr": RATE}, size.updates)
    places = {
        "staleness 1": replace(base, delay=1),
        f"{DEPTH} stages": replace(base, stages=DEPTH, updates=size.deep_updates),
    }
    rows: list[list[Cell]] = []
    claims = []
    for where, trial in places.items():
        losses = {
            way: [
                kept.outcome(replace(trial, optimizer={**trial.optimizer, **optimizer}, seed=seed)).loss
                for seed in range(size.seeds)
            ]
            for way, optimizer in WAYS.items()
        }
        for way, found in losses.items():
            over = [100 * (loss / full - 1) for loss, full in zip(found, losses[FULL], strict=True)]
            row: list[Cell] = [where, trial.updates, way, statistics.fmean(found)]
            rows.append([*row, None if way == FULL else interval(over, "%")])
            if way == CHEAP:
                statement = f"{way}: held-out loss after {trial.updates} updates over that with both sides"
                more = statistics.fmean(over)
                claims.append(Claim(where, statement, "<= 1% more (mean)", interval(over, "%"), more <= 1))
    columns = ["where", "updates", "optimizer", "held-out loss", "over both sides, 95 % interval"]
    return Part(
        "soap_learning",
        "What SOAP learns, with one side rotated and with both",
        claims,
        [Table("Held-out loss (nats) after short trainings", columns, rows)],
        notes=[
            f"{size.characters.name}; look_ahead, a rate of {RATE} for all after a warm-up; {size.seeds} seeds.",
            kept.trained_by,
        ],
    )


def _block(width: int) -> nn.Module:
    context, heads = TOKENS // 8, max(1, width // 64)
    gpt = made("examples.home.model:gpt", vocab=2, layers=1, width=width, heads=heads, context=context, dropout=0.0)
    assert isinstance(gpt, nn.Module)
    return gpt.get_submodule("blocks.0")
