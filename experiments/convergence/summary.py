"""The one-page report: what was found, for readers who know neither the paper nor the theorem. Made from result.json.

Decides the words around the figures; every figure is a claim's, as it was measured. Pictures are drawn anew, one a
question, from the panels that the parts left.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from experiments.harness.report import draw_panel, verdict

PAGE = "convergence-report.md"
MOST_TICKS = 8


@dataclass(frozen=True)
class Question:
    """One section: which part answers it, and how to read the answer."""

    part: str
    title: str
    text: str
    panels: Sequence[str]


WORDS = (
    ("update", "one step of a cluster's weights, from the gradient of a few samples. K counts those of each cluster"),
    ("error", "mean ‖∇f‖² over a training: how steep the loss f still is, squared. 0 where there is nothing to gain"),
    ("step", "how far an update follows its gradient. γ₁ is the theorem's where it leaves staleness out of account"),
    (
        "stage",
        "a part of the model, on a machine of its own; the stages of a cluster are a pipeline. The samples of an "
        "update pass through all of them and back, so the first stage's weights have changed most until then",
    ),
    ("pipeline, fleet", "in the checks: one cluster of several stages; two clusters, one half as fast again"),
    ("staleness T", "how many updates a stage has made since the weights that a gradient was computed with"),
    ("round", "C clusters average what they have learned since the last one: h updates of each"),
    ("lag", "how many rounds a cluster may have contributed to whose average it does not have yet (max_lag)"),
    ("bound", "what the error cannot exceed, by the theorem"),
    ("control", "something that is known not to work. That the check fails for it is what is held"),
    ("(… to …)", "the 95 % interval: how far off the figure before it may be by chance alone"),
    ("octave", "a doubling of K"),
    ("ε", "an error that is aimed at: how many updates does it take?"),
    ("transient", "the first part of each curve, in which a run is still on its way down; its end is predicted"),
    (
        "quadratic, logistic, tilted, network",
        "what is learned. A bowl with noise; to tell tumours apart, real data; a bowl whose slope bends just where "
        "training ends; a small network that reads digits",
    ),
)
"""For readers who know neither the paper nor the theorem."""

QUESTIONS = (
    Question(
        "rate",
        "Does it converge, and how fast?",
        "Training is over when the slope of the loss, ‖∇f‖, is zero. With noisy gradients the best that any method "
        "can promise for a loss that need not be convex is that its mean square falls as 1/√K with the number of "
        "updates K: four times the updates, half the error. On paper with logarithmic axes that is a line of slope "
        "−½. The theorem says that a run keeps this rate although its gradients are late and its clusters agree only "
        "now and then, and gives a bound that no measurement may pass. At first a run is still on its way down, and "
        "its error falls more slowly; how long that lasts is predicted from the descent without noise, and slopes are "
        "judged beyond it. A check that cannot fail proves nothing, so "
        "four things that must not work were put to the same check (controls): a step that does not shrink with K, a "
        "delay that grows with K, the same few samples used again and again, and averaging weights instead of "
        "progress while rounds overlap.",
        ("Rate: logistic, fleet", "Rate: network, pipeline", "Negative controls"),
    ),
    Question(
        "speedup",
        "Do more clusters help?",
        "Each of C clusters should need a C-th of the updates that one needs to the same error: an efficiency of 1. "
        "The theorem promises it as long as rounds of averaging are short beside the run, and no longer where they "
        "are not: both were tried. Long rounds end the speed-up in two ways. The theorem's own step becomes small. "
        "And with a step that does not (γ₁), an objective that feels how far clusters drift apart (tilted) departs "
        "from it, while one that does not feel it keeps it.",
        ("Speed-up: quadratic", "Speed-up: logistic", "Speed-up: tilted"),
    ),
    Question(
        "staleness",
        "From where on does staleness hurt?",
        "A gradient that is T updates late points where the weights have been. Up to a threshold that costs next to "
        "nothing; then training breaks down quickly. The theorem puts the threshold at an order of √(K/C), and its "
        "own figure is cautious: the measured one must not be below it, and must grow as √K. Long rounds, and lag, "
        "drive clusters apart, which costs more and more, but breaks nothing here. Corrections keep a training from "
        "breaking down far beyond the threshold; below it and a little beyond, they cost more than they give. "
        "delay_adaptive makes steps smaller with staleness; look_ahead computes gradients where momentum will have "
        "carried the weights.",
        ("Staleness T", "Length of rounds h", "Lag at one step", "Corrections"),
    ),
    Question(
        "blocks",
        "What if the stages are late by different amounts?",
        "In a pipeline the first stage's gradients are the oldest, and the last stage's are fresh. The theorem says "
        "that the error goes by the mean of the delays, and how large a step may be goes by the oldest. So a pipeline "
        "was put beside two that do not exist: all stages as late as its mean, and all as late as its oldest.",
        ("Blocks: quadratic",),
    ),
    Question(
        "backward",
        "What if the backward took the weights that are there by then?",
        "While a batch is on its way, the weights change. The program keeps the old ones until the batch's gradient is "
        "made, which costs memory. Without them, what comes out is the gradient of no function at all: it is off by an "
        "amount that shrinks with the step, so that a check which lets steps shrink with K would never see it. Here "
        "steps stay as they are. It costs where a step is so large that training hardly works any more; at the step "
        "that is best it costs nothing.",
        ("New weights in the backward",),
    ),
    Question(
        "program",
        "And the real program?",
        "The same questions, asked of the program itself: processes, sockets, rounds and checkpoints, real models on "
        "real data, late by whatever this machine makes of it. Constants can only be estimated here, runs are short "
        "and clusters few. So the yardstick is ordinary training with the same samples and steps in one process, "
        "without any delay: below the threshold the program must do as well.",
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
    beside = os.path.relpath(folder, page.parent)
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
        "ravnest trains one model on several clusters of machines. Within a cluster machines never wait for each "
        "other, so gradients are late; clusters average what they have learned only now and then, while they go on. "
        f"Does such training still converge, as fast as it could, and from where on not? {opening}.",
        "",
        "The [theory](theory.md) derives what should come out; this page is what came out, on objectives whose "
        "constants are known, along schedules of delays that the program's own state machines made under a virtual "
        "clock; and, in the last section, of the program itself. All tables are in "
        f"[RESULT.md]({beside}/RESULT.md). To measure again: `python -m experiments.convergence`.",
        "",
        "All of it is about plain SGD, with steps from known constants: that is what the theorem is about. What a job "
        "trains with unless it says otherwise, AdamW with look_ahead, is not covered; experiments/pipeline trains with "
        "it and others beside synchronous training.",
        "",
        "| word | what it means here |",
        "|---|---|",
        *(f"| {word} | {meaning} |" for word, meaning in WORDS),
    ]
    for question in answered:
        part = parts[question.part]
        lines += ["", f"## {question.title}", "", question.text, "", f"![{question.title}]({_picture(question)})", ""]
        lines += ["| check | wanted | measured | |", "|---|---|---|---|"]
        for claim in part["claims"]:
            cells = (
                f"**{claim['name']}**: {claim['statement']}",
                claim["target"],
                claim["measured"],
                verdict(claim["held"]),
            )
            lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
        lines += ["", f"`{part['command']}`, {part['date'][:10]}, commit {part['machine']['commit']}."]
    return lines


def _picture(question: Question) -> str:
    return f"convergence-{question.part}.png"


def _mark(axes: Axes, panel: Mapping[str, Any]) -> None:
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
        _mark(axes, panel)
    figure.savefig(path, dpi=80, format="png")
