"""Shows a run where there is no terminal: one line per event, and one per interval for progress.

Decides which events deserve a line. Reads time only from the events themselves.
"""

from __future__ import annotations

from types import TracebackType

from rich.console import Console

from cluster_planner import rate
from ravnest.driver.observe.report import (
    CheckpointWritten,
    ClusterProgress,
    Evaluated,
    Notice,
    Phase,
    Progress,
    RoundCommitted,
    RunEvent,
)
from ravnest.formatting import duration, loss_text


class PlainView:
    """An Observer that prints lines. `interval_s`: the least time between two lines of progress."""

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
        if isinstance(event, Progress):
            if self._shown_s is not None and event.elapsed_s - self._shown_s < self._interval_s:
                return
            self._shown_s = event.elapsed_s
        line = event_line(event)
        if line is not None:
            self._console.print(line, markup=False, highlight=False)


def event_line(event: RunEvent) -> str | None:
    """What one event reads as; None for events that are shown by others (a round shows in the progress)."""
    match event:
        case Phase(name, detail):
            return f"{name}: {detail}" if detail else name
        case Progress():
            return _progress_line(event)
        case Evaluated():
            return evaluation_line(event)
        case CheckpointWritten(path, number):
            return f"checkpoint of round {number}: {path}"
        case Notice(text):
            return text
        case RoundCommitted():
            return None


def evaluation_line(event: Evaluated) -> str:
    extra = "".join(f" · {name} {value:.4g}" for name, value in event.metrics.items())
    what = "final held-out loss" if event.final else f"held-out loss after {event.samples:,} samples"
    return f"{what}: {event.loss:.3f}{extra}"


def _progress_line(event: Progress) -> str:
    total = f"/{event.total_samples:,}" if event.total_samples is not None else ""
    clusters = " | ".join(_cluster_words(cluster) for cluster in event.clusters)
    return f"{duration(event.elapsed_s)} · {event.samples:,}{total} samples | {clusters}"


def _cluster_words(cluster: ClusterProgress) -> str:
    return (
        f"{cluster.name}: loss {loss_text(cluster.loss)}, {rate(cluster.samples_per_s)} samples/s, "
        f"staleness ≤ {cluster.max_staleness}, round {cluster.rounds_merged}, {cluster.updates:,} updates"
    )
