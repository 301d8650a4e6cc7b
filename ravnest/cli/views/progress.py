"""Shows the progress of a command: the events of a run, the slow steps of other commands, and notes on standard error.

In: events of a run, and the names of steps as they begin. Out: on a terminal a table of the clusters that refreshes, a
bar with the time left and a spinner; elsewhere plain lines. This module decides the words and the layout.
"""

from __future__ import annotations

import time
from types import TracebackType

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar
from rich.status import Status
from rich.table import Table
from rich.text import Text

from cluster_planner import format_rate
from ravnest.driver.observe.report import (
    CheckpointWrittenEvent,
    ClusterProgress,
    EvaluatedEvent,
    NoticeEvent,
    PhaseEvent,
    ProgressEvent,
    RoundCommittedEvent,
    RunEvent,
)
from ravnest.formatting import duration, loss_text


class PlainView:
    """An Observer that prints lines. At least `interval_s` seconds pass between two lines of progress."""

    def __init__(self, console: Console, interval_s: float = 5.0) -> None:
        self._console = console
        self._interval_s = interval_s
        self._shown_s: float | None = None

    def __enter__(self) -> PlainView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def on(self, event: RunEvent) -> None:
        if isinstance(event, ProgressEvent):
            if self._shown_s is not None and event.elapsed_s - self._shown_s < self._interval_s:
                return
            self._shown_s = event.elapsed_s
        line = event_line(event)
        if line is not None:
            self._console.print(line, markup=False, highlight=False)


def event_line(event: RunEvent) -> str | None:
    """The line for one event; None for a committed round, which the lines of progress show."""
    match event:
        case PhaseEvent(name, detail):
            return f"{name}: {detail}" if detail else name
        case ProgressEvent():
            return _progress_line(event)
        case EvaluatedEvent():
            return evaluation_line(event)
        case CheckpointWrittenEvent(path, number):
            return f"checkpoint of round {number}: {path}"
        case NoticeEvent(text):
            return text
        case RoundCommittedEvent():
            return None


def evaluation_line(event: EvaluatedEvent) -> str:
    extra = "".join(f" · {name} {value:.4g}" for name, value in event.metrics.items())
    what = "final held-out loss" if event.final else f"held-out loss after {event.samples:,} samples"
    return f"{what}: {event.loss:.3f}{extra}"


def _progress_line(event: ProgressEvent) -> str:
    total = f"/{event.total_samples:,}" if event.total_samples is not None else ""
    clusters = " | ".join(_cluster_words(cluster) for cluster in event.clusters)
    return f"{duration(event.elapsed_s)} · {event.samples:,}{total} samples | {clusters}"


def _cluster_words(cluster: ClusterProgress) -> str:
    return (
        f"{cluster.name}: loss {loss_text(cluster.loss)}, {format_rate(cluster.samples_per_s)} samples/s, "
        f"staleness ≤ {cluster.max_staleness}, round {cluster.rounds_merged}, {cluster.updates:,} updates"
    )


class LiveView:
    """An Observer for a terminal. It is used as a context, which owns the last lines of the screen."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._phase = PhaseEvent("starting")
        self._progress: ProgressEvent | None = None
        self._round = 0
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self.render)

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def on(self, event: RunEvent) -> None:
        if isinstance(event, PhaseEvent):
            self._phase = event
        elif isinstance(event, ProgressEvent):
            self._progress = event
        elif isinstance(event, RoundCommittedEvent):
            self._round = event.round
        else:
            line = event_line(event)
            style = "bold" if isinstance(event, EvaluatedEvent) else "dim"
            self._console.print(Text(line or "", style=style))

    def render(self) -> RenderableType:
        phase = Text.assemble((self._phase.name, "bold"), f"  {self._phase.detail}")
        if self._progress is None:
            return phase
        return Group(cluster_table(self._progress), _bar(self._progress, self._round), phase)


def cluster_table(progress: ProgressEvent) -> Table:
    """A table with one row for each cluster."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("cluster")
    for name in ("loss", "samples/s", "staleness", "round", "updates", "samples"):
        table.add_column(name, justify="right", min_width=len(name) + 1)
    for cluster in progress.clusters:
        table.add_row(
            cluster.name,
            loss_text(cluster.loss),
            format_rate(cluster.samples_per_s),
            f"≤ {cluster.max_staleness}",
            str(cluster.rounds_merged),
            f"{cluster.updates:,}",
            f"{cluster.samples:,}",
        )
    return table


def time_left_s(progress: ProgressEvent) -> float | None:
    """The seconds to the end at the present rates; None where the run ends by time or has not begun."""
    samples_per_s = sum(cluster.samples_per_s for cluster in progress.clusters)
    if progress.total_samples is None or samples_per_s <= 0:
        return None
    return max(progress.total_samples - progress.samples, 0) / samples_per_s


def _bar(progress: ProgressEvent, round_number: int) -> Bar:
    left_s = time_left_s(progress)
    total = progress.total_samples
    words = f"{progress.samples:,}{f' of {total:,}' if total is not None else ''} samples · round {round_number}"
    words += f" · {duration(progress.elapsed_s)}"
    if left_s is not None and left_s >= 1:
        words += f", {duration(left_s)} left"
    bar = Bar(BarColumn(bar_width=30), TextColumn("{task.description}"))
    bar.add_task(words, total=total, completed=progress.samples)
    return bar


class Steps:
    """A context: `begin(step)` ends the step before it, which then stays on the screen with the seconds it
    took.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None
        self._current: str | None = None
        self._since_s = 0.0

    def begin(self, step: str) -> None:
        self._end(done=True)
        self._current, self._since_s = step, time.monotonic()
        if self._console.is_terminal and not self._console.quiet:
            self._status = self._console.status(f"{step} …")
            self._status.start()

    def say(self, detail: str) -> None:
        """Shows on a terminal, beside the current step, how far it is."""
        if self._status is not None:
            self._status.update(f"{self._current} … {detail}")

    def __enter__(self) -> Steps:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(done=error is None)

    def _end(self, *, done: bool) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
        if done and self._current is not None:
            took_s = time.monotonic() - self._since_s
            self._console.print(f"[dim]{self._current}: {took_s:.1f} s[/dim]", highlight=False)
        self._current = None


def note(said: str) -> None:
    """Prints a note for the user on standard error."""
    typer.echo(f"note: {said}", err=True)


def warning(said: str) -> None:
    """Prints a warning on standard error: something is possible but probably not meant."""
    typer.echo(f"ravnest: warning: {said}", err=True)
