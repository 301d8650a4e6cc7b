"""Shows what runs' folders tell: a table of several, or one run in lines.

In: RunStates. Out: a table, lines, or plain data for JSON. This module decides the words and the layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from cluster_planner import format_rate
from ravnest.cli.views.progress import cluster_table, time_left_s
from ravnest.cli.views.tables import legend, show_pairs, titled_table
from ravnest.driver.observe.report import ProgressEvent
from ravnest.formatting import duration, json_value, loss_text
from ravnest.results.run_state import MEANING, RunState

_STYLES = {"running": "green", "failed": "red", "killed": "red", "damaged": "red", "unknown": "yellow"}
_NOTHING = "–"


def show_runs(runs: Sequence[RunState], console: Console) -> None:
    """Prints a row for each run."""
    table = titled_table(f"{len(runs)} run{'' if len(runs) == 1 else 's'}, the last that wrote at the end", "run")
    for name in ("state", "samples", "held-out", "wrote last"):
        table.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
    table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"
    for run in runs:
        state = f"{run.state}{' (rehearsal)' if run.is_rehearsal else ''}"
        table.add_row(
            escape(str(run.path)),
            Text(state, style=_STYLES.get(run.state, "")),
            _NOTHING if run.progress is None else f"{run.progress.samples:,}",
            loss_text(run.held_out_loss),
            _ago(run.silent_s),
        )
    console.print(table)
    seen = [state for state in MEANING if any(run.state == state for run in runs)]
    meanings = "; ".join(f"{state}: {MEANING[state]}" for state in seen)
    console.print(legend(f"held-out: the last loss on the held-out set. {meanings}."))


def show_status(run: RunState, console: Console) -> None:
    """Prints what is known of one run."""
    rows = [("state", f"{run.state}: {MEANING[run.state]}{' (a rehearsal)' if run.is_rehearsal else ''}")]
    if run.reason is not None:
        rows.append(("why", run.reason))
    if run.owner is not None:
        rows.append(("process", run.owner))
    if run.state == "running":
        rows.append(("phase", run.phase or "starting"))
    if run.progress is not None:
        rows.append(("samples", _samples(run.progress, goes_on=run.state == "running" and run.phase is not None)))
    if run.held_out_loss is not None:
        rows.append(("held-out loss", f"{loss_text(run.held_out_loss)} after {run.held_out_samples:,} samples"))
    if run.checkpoint is not None:
        rows.append(("checkpoint", f"{run.path / 'checkpoints' / run.checkpoint}, {_ago(run.checkpoint_age_s)}"))
    rows.append(("wrote last", _ago(run.silent_s)))
    if run.logs:
        rows.append(("logs", ", ".join(f"{run.path / 'logs' / name}" for name in run.logs)))
    show_pairs(console, rows)
    if run.progress is not None:
        console.print()
        console.print(cluster_table(run.progress))


def run_document(run: RunState) -> object:
    """Returns the state as JSON has it."""
    trains = run.state == "running" and run.phase is not None
    left_s = time_left_s(run.progress) if run.progress is not None and trains else None
    return json_value({**asdict(run), "left_s": left_s})


def _samples(progress: ProgressEvent, *, goes_on: bool) -> str:
    total = f" of {progress.total_samples:,}" if progress.total_samples is not None else ""
    made = progress.samples if progress.session_samples is None else progress.session_samples
    since = f"; {made:,} since it was resumed," if made != progress.samples else ""
    words = f"{progress.samples:,}{total}{since} in {duration(progress.elapsed_s)}"
    if not goes_on:
        return words
    rate = sum(cluster.samples_per_s for cluster in progress.clusters)
    left_s = time_left_s(progress)
    return f"{words} ({format_rate(rate)}/s)" + ("" if left_s is None else f", {duration(left_s)} left")


def _ago(seconds: float | None) -> str:
    """Whole seconds: nobody reads a fraction of one, and the clock of another machine has none to offer."""
    if seconds is None:
        return _NOTHING
    return "just now" if seconds < 1 else f"{seconds:.0f} s ago" if seconds < 59.5 else f"{duration(seconds)} ago"
