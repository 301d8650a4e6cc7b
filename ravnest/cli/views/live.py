"""Shows a run on a terminal: a table of the clusters that refreshes, a bar with the time left, and lines
that stay.

Decides the layout only. A terminal that cannot move its cursor is served by ravnest.cli.views.plain_lines instead.
"""

from __future__ import annotations

from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from cluster_planner import rate
from ravnest.cli.views.plain_lines import event_line
from ravnest.driver.observe.report import Evaluated, Phase, Progress, RoundCommitted, RunEvent
from ravnest.formatting import duration, loss_text


class LiveView:
    """An Observer for a terminal; use it as a context, which owns the screen's last lines."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._phase = Phase("starting")
        self._progress: Progress | None = None
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
        if isinstance(event, Phase):
            self._phase = event
        elif isinstance(event, Progress):
            self._progress = event
        elif isinstance(event, RoundCommitted):
            self._round = event.round
        else:
            line = event_line(event)
            style = "bold" if isinstance(event, Evaluated) else "dim"
            self._console.print(Text(line or "", style=style))

    def render(self) -> RenderableType:
        phase = Text.assemble((self._phase.name, "bold"), f"  {self._phase.detail}")
        if self._progress is None:
            return phase
        return Group(cluster_table(self._progress), _bar(self._progress, self._round), phase)


def cluster_table(progress: Progress) -> Table:
    """One row per cluster."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("cluster")
    for name in ("loss", "samples/s", "staleness", "round", "updates", "samples"):
        table.add_column(name, justify="right", min_width=len(name) + 1)
    for cluster in progress.clusters:
        table.add_row(
            cluster.name,
            loss_text(cluster.loss),
            rate(cluster.samples_per_s),
            f"≤ {cluster.max_staleness}",
            str(cluster.rounds_merged),
            f"{cluster.updates:,}",
            f"{cluster.samples:,}",
        )
    return table


def time_left_s(progress: Progress) -> float | None:
    """Seconds to the end at the present rates; None where the run stops by time or has not begun."""
    samples_per_s = sum(cluster.samples_per_s for cluster in progress.clusters)
    if progress.total_samples is None or samples_per_s <= 0:
        return None
    return max(progress.total_samples - progress.samples, 0) / samples_per_s


def _bar(progress: Progress, round_number: int) -> Bar:
    left_s = time_left_s(progress)
    total = progress.total_samples
    words = f"{progress.samples:,}{f' of {total:,}' if total is not None else ''} samples · round {round_number}"
    words += f" · {duration(progress.elapsed_s)}"
    if left_s is not None and left_s >= 1:
        words += f", {duration(left_s)} left"
    bar = Bar(BarColumn(bar_width=30), TextColumn("{task.description}"))
    bar.add_task(words, total=total, completed=progress.samples)
    return bar
