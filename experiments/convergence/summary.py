"""Write the report for readers who know neither the paper nor the theorem, from the experiment's result.json.

In: the folder of the results. Out: one page of Markdown, with a picture for each question, drawn from the panels that
the parts left. Every figure on the page is a claim's, as it was measured; only the words around them are written here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from experiments.harness.report import draw_panel, verdict

PAGE = "convergence-report.md"
MOST_TICKS = 8
WIDTH = 116
HELD = "✓"
COMMAND = "python -m experiments.convergence "


@dataclass(frozen=True)
class Question:
    """One section: which part answers it, and how to read the answer."""

    part: str
    title: str
    text: str
    panels: Sequence[str]


WORDS = (
    ("K", "the number of updates of each cluster; an octave is a doubling of K"),
    (
        "error",
        "mean ‖∇f‖² over a training: how steep the loss f still is, squared. It is 0 where there is nothing to gain",
    ),
    (
        "step",
        "how far an update follows its gradient. γ₁ is the theorem's step where it leaves staleness out of account",
    ),
    ("pipeline, fleet", "in the checks: one cluster of several stages; two clusters, one half as fast again"),
    ("T, h, C", "the staleness in updates; the updates of a cluster in a round; the number of clusters"),
    ("bound", "what the error cannot exceed, by the theorem"),
    ("control", "something that is known not to work. The check holds if the control fails"),
    ("(… to …), upper end", "the 95 % interval and its ends; ✓: the check held"),
    ("transient", "the first part of each curve, in which a run is still on its way down; its end is predicted"),
    (
        "quadratic, logistic, tilted, network",
        "what is learned: a bowl with noise; tumours, from real data; a bowl whose slope bends just where training "
        "ends; a small network that reads digits",
    ),
)
"""The words of this page that are not in the glossary, or mean less here than there."""

QUESTIONS = (
    Question(
        "rate",
        "Does it converge, and how fast?",
        "With noisy gradients the best that any method can promise for a loss that need not be convex is an error "
        "that falls as 1/√K, on logarithmic axes a line of slope −½. The theorem says that a run keeps this rate "
        "although gradients are late and clusters agree only now and then, and gives a bound that no measurement "
        "may pass. Slopes are judged beyond the transient. Four things that must not work were put to the same "
        "check: a step that does not shrink with K, a delay that grows with K, the same few samples again and "
        "again, and averaging weights instead of progress while rounds overlap.",
        ("Rate: logistic, fleet", "Rate: network, pipeline", "Negative controls"),
    ),
    Question(
        "speedup",
        "Do more clusters help?",
        "Each of C clusters should need a C-th of the updates that one needs to the same error ε: an efficiency "
        "of 1. The theorem promises it while rounds of averaging are short beside the run. Long rounds end it in "
        "two ways: the theorem's own step becomes small, and with a step that does not (γ₁), an objective that "
        "feels how far clusters drift apart (tilted) departs from it.",
        ("Speed-up: quadratic", "Speed-up: logistic", "Speed-up: tilted"),
    ),
    Question(
        "staleness",
        "From where on does staleness hurt?",
        "Up to a threshold, late gradients cost next to nothing; then training breaks down quickly. The theorem "
        "puts the threshold at an order of √(K/C), cautiously: the measured one must not be below it, and must "
        "grow as √K. Long rounds and lag cost more and more, but break nothing here. Corrections keep a training "
        "from breaking down far beyond the threshold; below it and a little beyond, they cost more than they "
        "give.",
        ("Staleness T", "Length of rounds h", "Lag at one step", "Corrections"),
    ),
    Question(
        "blocks",
        "What if some stages are later than others?",
        "In a pipeline the first stage's gradients are the oldest, and the last stage's are fresh. The theorem "
        "says that the error follows the mean delay, and that the oldest limits the step. So a pipeline was put "
        "beside two that do not exist: all stages as late as its mean, and all as late as its oldest.",
        ("Blocks: quadratic",),
    ),
    Question(
        "backward",
        "What if a backward used the newest weights?",
        "The program keeps the weights of each forward until the gradient is made, which costs memory. Without "
        "them the result is the gradient of no function at all, off by an amount that shrinks with the step; so "
        "steps stay as they are here. It costs where a step is so large that training hardly works any more, and "
        "nothing at the best step.",
        ("New weights in the backward",),
    ),
    Question(
        "program",
        "And the real program?",
        "The same questions were asked of processes, sockets, rounds and checkpoints, with real models and data, "
        "and the delays of this machine. Constants can only be estimated here, runs are short and clusters few. "
        "So the yardstick is ordinary training with the same samples and steps in one process without any delay. "
        "Below the threshold the program must do as well.",
        ("Program: rate", "Program: staleness"),
    ),
)


def write(folder: Path, page: Path) -> None:
    """`page` and a picture beside it for each part, from `folder`/result.json."""
    document = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    parts: Mapping[str, Any] = document["parts"]
    page.parent.mkdir(parents=True, exist_ok=True)
    answered = [question for question in QUESTIONS if question.part in parts]
    for question in answered:
        _draw(parts[question.part], question, page.parent / _picture(question))
    beside = _named(folder / "RESULT.md", page)
    page.write_text("\n".join(_lines(parts, answered, beside)) + "\n", encoding="utf-8")


def _lines(parts: Mapping[str, Any], answered: Sequence[Question], beside: str) -> list[str]:
    claims = [claim for question in answered for claim in parts[question.part]["claims"]]
    held = sum(claim["held"] is True for claim in claims)
    opening = f"{held} of {len(claims)} checks held"
    for fate in (False, None):
        named = [f"“{claim['name']}”" for claim in claims if claim["held"] is fate]
        opening += f"; {verdict(fate).strip('*')}: {', '.join(named)}" if named else ""
    lines = [
        "# Does it converge? What was measured",
        "",
        "<!-- Written by `python -m experiments.convergence`; never edited by hand. -->",
        "",
        "Gradients in ravnest are late, and clusters average what they have learned only now and then. Does such",
        "training still converge, as fast as it could, and until when?",
        *wrap(f"{opening}.", WIDTH),
        "",
        "The [theory](theory.md) derives what should come out. This is what came out, on objectives with known",
        "constants, along schedules of delays of the program's own state machines, and, in the last section, of the",
        f"program itself. `{beside}` has all tables. `{COMMAND.strip()}` measures again.",
        "",
        "Both are about plain SGD. [experiments.pipeline](experiments/pipeline.md) measures what a job trains with by",
        "default, AdamW with look_ahead. The [glossary](glossary.md) has the other words.",
        "",
        "| word | what it means here |",
        "|---|---|",
        *(f"| {word} | {meaning} |" for word, meaning in WORDS),
    ]
    for question in answered:
        part = parts[question.part]
        lines += [
            "",
            f"## {question.title}",
            "",
            *wrap(question.text, WIDTH),
            "",
            f"![{question.part}]({_picture(question)})",
            "",
        ]
        lines += ["| check | wanted | measured | |", "|---|---|---|---|"]
        lines += _rows(part["claims"])
        lines += ["", f"`{part['command'].removeprefix(COMMAND)}`, commit {part['machine']['commit']}."]
    return lines


def _rows(claims: Sequence[Mapping[str, Any]]) -> list[str]:
    """The rows of a part's claims. A row does not repeat what a row before it says."""
    rows, told = [], set[str]()
    for claim in claims:
        statement, target = claim["statement"], claim["target"].replace(" of the 95 % interval", "")
        head, _, particulars = statement.partition(": ")
        repeated = f"the same: {particulars}" if head in told else statement
        shown = "the same" if statement in told else repeated
        told |= {head, statement}
        held = HELD if claim["held"] else verdict(claim["held"])
        cells = (f"**{claim['name']}**: {shown}", target.replace(" of the interval", ""), claim["measured"], held)
        rows.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
    return rows


def _named(file: Path, page: Path) -> str:
    """`file` as the repository knows it, or relative to `page` where it is elsewhere."""
    repository = Path(__file__).parents[2]
    inside = file.resolve().is_relative_to(repository)
    return file.resolve().relative_to(repository).as_posix() if inside else os.path.relpath(file, page.parent)


def _picture(question: Question) -> str:
    return f"convergence-{question.part}.png"


NAMED = {
    "K": "K: updates of each cluster",
    "T": "T: staleness in updates",
    "T at the first stage": "T: staleness at the first stage, in updates",
    "max_lag": "max_lag: rounds",
    "C": "C: clusters",
    "mean ‖∇f‖²": "error: mean ‖∇f‖²",
}
"""What the axes are called in the pictures of this page, where a part's own picture has the bare symbol."""


def name_axes(axes: Axes, panel: Mapping[str, Any]) -> None:
    """The axes with what their symbols mean, and a legend that can be read at the size of the page."""
    axes.set_xlabel(NAMED.get(panel["x_label"], panel["x_label"]), fontsize=9)
    axes.set_ylabel(NAMED.get(panel["y_label"], panel["y_label"]), fontsize=9)
    axes.tick_params(labelsize=8)
    if panel["series"]:
        axes.legend(fontsize=8)


def add_rate(axes: Axes, panel: Mapping[str, Any]) -> None:
    """On logarithmic axes over K, the slope that the theorem promises: −½, through the end of the first curve."""
    series = [one for one in panel["series"] if one["x"]]
    if panel["x_label"] != "K" or not (panel["log_x"] and panel["log_y"]) or not series:
        return
    end_x, end_y = series[0]["x"][-1], series[0]["y"][-1]
    begin_x = min(series[0]["x"])
    begin_y = end_y * (begin_x / end_x) ** -0.5
    axes.plot([begin_x, end_x], [begin_y, end_y], color="black", linestyle=":", linewidth=1.2, label="slope −½")


def mark(axes: Axes, panel: Mapping[str, Any]) -> None:
    """Ticks at the whole numbers that were tried, by octaves mostly, where matplotlib would have powers of ten."""
    tried = sorted({x for series in panel["series"] for x in series["x"] if float(x).is_integer()})
    if panel["log_x"] and len(tried) > 1:
        shown = tried[:: -(-len(tried) // MOST_TICKS)]
        axes.set_xticks(shown, [f"{x:g}" for x in shown])
        axes.xaxis.set_minor_locator(NullLocator())


def _draw(part: Mapping[str, Any], question: Question, path: Path) -> None:
    panels = [panel for title in question.panels for panel in part["panels"] if panel["title"] == title]
    across = 2 if len(panels) == 4 else max(1, len(panels))
    down = max(1, -(-len(panels) // across))
    figure = Figure(figsize=(5.2 * across, 3.8 * down), layout="constrained")
    FigureCanvasAgg(figure)
    for place, panel in enumerate(panels):
        axes = figure.add_subplot(down, across, place + 1)
        draw_panel(axes, panel)
        mark(axes, panel)
        add_rate(axes, panel)
        name_axes(axes, panel)
    figure.savefig(path, dpi=100, format="png")
