"""Trainings that differ in the form of numbers on the wire alone, and what is claimed of them.

In: tasks, and what trains one in a form from a seed. Out: how much higher each form ends than float32 with the same
seeds, with an interval, and a part of the report.
"""

import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from experiments.harness.report import Cell, Claim, Panel, Part, Series, Table
from experiments.pipeline.quality import margin
from experiments.pipeline.tasks import Task
from ravnest.training.precision import WireName, bytes_per_float32_byte

EXACT = "float32"
FORMS: Sequence[WireName] = (EXACT, "bfloat16", "int8", "int4")
RATIOS: Mapping[str, float] = {form: 1 / bytes_per_float32_byte(form) for form in (*FORMS, "sparse")}  # type: ignore[arg-type]
"""How many times fewer bytes than float32 a form takes, scales included."""
SEEDS = range(6)

Form = TypeVar("Form", bound=str)
Losses = Mapping[str, Mapping[str, Sequence[float]]]
"""By task and form: the held-out loss of each seed."""


def losses_of(
    tasks: Mapping[str, Task],
    forms: Sequence[Form],
    train: Callable[[str, Task, Form, int], float],
    seeds: Sequence[int],
) -> Losses:
    """Train each task in each form from each seed. `train(name, task, form, seed)` returns the held-out loss."""
    losses: dict[str, dict[str, list[float]]] = {}
    for name, task in tasks.items():
        for form in forms:
            found = [train(name, task, form, seed) for seed in seeds]
            losses.setdefault(name, {})[form] = found
            print(f"  {name} {form}: {statistics.fmean(found):.4f}", file=sys.stderr, flush=True)
    return losses


@dataclass(frozen=True)
class Higher:
    """By how much more a form ends than float32, of the loss of float32: the mean over seeds, and half its interval."""

    mean: float
    half: float


def higher(losses: Sequence[float], exact: Sequence[float]) -> Higher:
    """Compare pairs of one seed each."""
    apart = [(loss - base) / base for loss, base in zip(losses, exact, strict=True)]
    if len(apart) < 2:
        return Higher(apart[0], math.nan)
    return Higher(statistics.fmean(apart), margin(apart))


def is_within(form: str, losses: Losses, most: float) -> bool:
    """Whether a form ends at most `most` higher than float32 in every task, on the mean."""
    return all(higher(of[form], of[EXACT]).mean <= most for of in losses.values())


def part_of(
    name: str,
    title: str,
    losses: Losses,
    *,
    most: float,
    least_ratio: float,
    notes: Sequence[str],
    ratios: Mapping[str, float] = RATIOS,
) -> Part:
    """The part of the report. `most`, by which a form may end higher, and `least_ratio` are the targets; `ratios` says
    how many times fewer bytes each form takes.
    """
    forms = list(next(iter(losses.values())))
    best = max((form for form in forms if is_within(form, losses, most)), key=lambda form: ratios[form])

    def said(form: str) -> str:
        return ", ".join(f"{task} {higher(of[form], of[EXACT]).mean:+.2%}" for task, of in losses.items())

    rows: list[list[Cell]] = []
    for task, of in losses.items():
        for form, values in of.items():
            apart = higher(values, of[EXACT])
            half = None if math.isnan(apart.half) else apart.half
            rows.append([task, form, ratios[form], statistics.fmean(values), apart.mean, half])
    claims = [
        Claim(
            "bytes",
            f"a form ends at most {most:.1%} higher than float32 in every task, with many times fewer bytes",
            f"at least {least_ratio:.0f} times fewer",
            f"{best}: {ratios[best]:.1f} times fewer, {said(best)}",
            ratios[best] >= least_ratio,
        )
    ]
    for form in forms[1:]:
        stated = f"{form} ends at most {most:.1%} higher than float32 in every task, on the mean"
        claims.append(Claim(form, stated, f"at most {most:.1%}", said(form), is_within(form, losses, most)))
    columns = ["task", "form", "times fewer bytes", "loss", "above float32", "half of its 95 % interval"]
    lines = [
        Series(task, [ratios[form] for form in of], [higher(of[form], of[EXACT]).mean for form in of])
        for task, of in losses.items()
    ]
    return Part(
        name,
        title,
        claims,
        [Table("Held-out loss after the same samples, by form; the means of paired seeds", columns, rows)],
        [
            Panel(
                title,
                "times fewer bytes than float32",
                "held-out loss above float32's",
                lines,
                log_x=True,
                target=most,
            )
        ],
        notes,
    )
