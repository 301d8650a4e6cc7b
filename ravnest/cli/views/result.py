"""Shows the result of a run or of an evaluation: figures, baselines, a sample, and where everything was written.

In: a RunResult or an Evaluation. Out: lines and tables. This module decides the words and the layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from cluster_planner import format_rate
from ravnest.cli.views.tables import legend, say, show_pairs, titled_table
from ravnest.driver.observe.report import RunResult, StageFigures, TimeShares
from ravnest.formatting import beside_baselines, duration, size
from ravnest.results.evaluation import Evaluation


def show_result(result: RunResult, plan_path: Path, console: Console) -> None:
    """Prints the result. `plan_path` is named in the command that resumes a run that was stopped early."""
    console.print()
    show_pairs(console, _figures(result))
    if result.stages:
        console.print()
        console.print(stages_tables(result.stages))
    if result.held_out_loss is not None:
        console.print()
        say(console, beside_baselines(result.held_out_loss, result.baselines), "bold")
    if result.sample_text is not None:
        title = "A sample from the trained weights"
        console.print()
        if console.is_terminal:
            console.print(Panel(Text(result.sample_text), title=title, title_align="left"))
        else:
            console.print(f"{title}:\n", markup=False, highlight=False)
            console.print(result.sample_text, markup=False, highlight=False)
    console.print()
    show_pairs(console, _paths(result))
    if result.stopped_early:
        encrypted = " --encrypt" if result.encrypted else ""
        console.print()
        say(console, f"Stopped early. To go on: ravnest run {plan_path} --resume --out {result.out_dir}{encrypted}")


def show_evaluation(result: Evaluation, console: Console) -> None:
    """Prints the loss and the metrics of weights, with the baselines."""
    of = {"held_out": "held-out", "train": "training"}[result.data]
    part = "" if result.set_samples is None else f" of {result.set_samples:,}"
    rows = [
        ("weights", str(result.weights)),
        ("data", f"{result.samples:,}{part} {of} samples in {duration(result.seconds)}"),
        (f"{of} loss", f"{result.loss:.4g}"),
        *((f"{of} {name}", f"{value:.4g}") for name, value in result.metrics.items()),
    ]
    show_pairs(console, rows)
    if result.stopped_early:
        console.print()
        say(console, "Stopped early: the figures are of the samples that were through.")
    if result.baselines:
        console.print()
        say(console, beside_baselines(result.loss, result.baselines), "bold")


def _figures(result: RunResult) -> list[tuple[str, str]]:
    mode = ", encrypted" if result.encrypted else ""
    since = "" if result.session_samples is None else f"; {result.session_samples:,} since it was resumed"
    rounds = (
        [("rounds of averaging", f"{result.rounds:,}")] if len(result.windows) != 1 else []
    )  # one averages with nobody
    return [
        (
            "samples",
            f"{result.samples:,}{since} in {duration(result.seconds)} ({format_rate(result.samples_per_s)}/s{mode})",
        ),
        ("updates", f"{result.updates:,}"),
        *rounds,
        ("staleness", f"at most {result.max_staleness}, {result.mean_staleness:.2f} on average (updates)"),
        *((f"held-out {name}", f"{value:.4g}") for name, value in result.metrics.items()),
    ]


def _paths(result: RunResult) -> list[tuple[str, str]]:
    rows = [
        ("weights", result.weights_path),
        ("checkpoint", result.checkpoint_path),
        ("metrics", result.metrics_path),
        ("loss curve", result.loss_curve_path),
        ("timeline", result.trace_path),
    ]
    return [(name, str(path)) for name, path in rows if path is not None]


_LEAST_SHOWN = 0.005


def stages_tables(stages: Sequence[StageFigures]) -> Group:
    """Returns two tables, each of which fits 80 columns: the shares of the time, then the causes of waiting and the
    memory.

    The busiest stage, which limits the others, is in bold. A run that was too short for a steady state shows the shares
    of the whole run.
    """
    steady = all(each.steady is not None for each in stages)
    shares = {each.stage: each.steady if steady else each.overall for each in stages}
    told = [(each, share) for each in stages if (share := shares[each.stage]) is not None]
    busiest = max((share.compute for _, share in told), default=0.0)
    times = _table(f"where the time went ({'steady state' if steady else 'whole run, fill and drain included'})")
    for name in ("compute", "averaging", "evaluation", "handing over", "bubble"):
        times.add_column(name, justify="right", no_wrap=True)
    rest = _table("what the bubble waited for, and the most that tensors took")
    rest.add_column("bubble")
    rest.add_column("tensors", justify="right", no_wrap=True)
    for each, share in told:
        style = "bold" if share.compute == busiest else ""
        names = (escape(each.stage), escape(each.node))
        parts = (share.compute, share.averaging, share.evaluation, share.handoff, share.bubble)
        times.add_row(*names, *(f"{part:.1%}" for part in parts), style=style)
        rest.add_row(*names, waits_text(share) or "–", memory_text(each) or "–", style=style)
    of_times = legend(
        "Shares of each stage's time; a row adds up to 100%. averaging: snapshots and merges; handing over: between the"
        " stage's own threads; bubble: waiting."
    )
    of_rest = legend(
        "Shares of the same time, by what was waited for: input (another stage), window (latency), staleness (its"
        " limit), lag (averaging). tensors: the most at one time, and as a part of what the plan counts with."
    )
    return Group(times, of_times, "", rest, of_rest)


def _table(title: str) -> Table:
    table = titled_table(title, "stage")
    table.add_column("node", overflow="fold")
    return table


def memory_text(figures: StageFigures) -> str:
    """Returns the memory of a stage's tensors, such as `1.37 MB (96% of plan)`; empty where it is unknown."""
    memory = figures.memory
    if memory is None:
        return ""
    planned = f" ({memory.tensor_bytes / memory.planned_bytes:.0%} of plan)" if memory.planned_bytes > 0 else ""
    return size(memory.tensor_bytes) + planned


def waits_text(share: TimeShares) -> str:
    """Returns the larger causes of waiting with their shares, such as `input 12%, window 3%`, the largest first."""
    causes = sorted(share.waiting.items(), key=lambda item: -item[1])
    return ", ".join(f"{cause} {part:.0%}" for cause, part in causes if part >= _LEAST_SHOWN)
