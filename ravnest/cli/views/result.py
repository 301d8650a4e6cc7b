"""Shows what a run came to: its figures, the baselines beside them, the sample, and where everything was
written.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from cluster_planner import rate
from ravnest.cli.views.stages import stages_tables
from ravnest.driver.observe.report import RunResult
from ravnest.formatting import beside_baselines, duration
from ravnest.results.evaluation import Evaluation


def show_result(result: RunResult, plan_path: Path, console: Console) -> None:
    """Print it. `plan_path` is named in the command that would go on with a run that was stopped."""
    console.print()
    console.print(_pairs(_figures(result)))
    if result.stages:
        console.print()
        console.print(stages_tables(result.stages))
    if result.held_out_loss is not None:
        console.print()
        console.print(Text(beside_baselines(result.held_out_loss, result.baselines), style="bold"))
    if result.sample_text is not None:
        title = "A sample from the trained weights"
        console.print()
        if console.is_terminal:
            console.print(Panel(Text(result.sample_text), title=title, title_align="left"))
        else:
            console.print(f"{title}:\n", markup=False, highlight=False)
            console.print(result.sample_text, markup=False, highlight=False)
    console.print()
    console.print(_pairs(_paths(result)))
    if result.stopped_early:
        encrypted = " --encrypt" if result.encrypted else ""
        console.print(
            f"\nStopped early. To go on: ravnest run {plan_path} --resume --out {result.out_dir}{encrypted}",
            markup=False,
            highlight=False,
        )


def show_evaluation(result: Evaluation, console: Console) -> None:
    """Print what weights came to on a set."""
    of = {"held_out": "held-out", "train": "training"}[result.data]
    rows = [
        ("weights", str(result.weights)),
        ("data", f"{result.samples:,} {of} samples in {duration(result.seconds)}"),
        (f"{of} loss", f"{result.loss:.4g}"),
        *((f"{of} {name}", f"{value:.4g}") for name, value in result.metrics.items()),
    ]
    console.print(_pairs(rows))
    if result.baselines:
        console.print()
        console.print(Text(beside_baselines(result.loss, result.baselines), style="bold"))


def _pairs(rows: list[tuple[str, str]]) -> Text:
    """One row a line, aligned; nothing is cut off, so that a path can be copied."""
    width = max(len(name) for name, _ in rows) + 2
    return Text("\n").join(Text.assemble((name.ljust(width), "dim"), value) for name, value in rows)


def _figures(result: RunResult) -> list[tuple[str, str]]:
    mode = ", encrypted" if result.encrypted else ""
    since = "" if result.session_samples is None else f"; {result.session_samples:,} since it was resumed"
    rounds = (
        [("rounds of averaging", f"{result.rounds:,}")] if len(result.windows) != 1 else []
    )  # one averages with nobody
    return [
        ("samples", f"{result.samples:,}{since} in {duration(result.seconds)} ({rate(result.samples_per_s)}/s{mode})"),
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
