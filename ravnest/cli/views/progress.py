"""Shows the progress of a run, and notes on standard error.

In: events of a run. Out: on a terminal a table of the clusters that refreshes, and a bar with the time left; elsewhere
plain lines. This module decides the words and the layout.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from cluster_planner import format_rate
from ravnest.cli.views.tables import console, say
from ravnest.driver.observe.place_events import (
    ClusterReplannedEvent,
    NodeJoinedEvent,
    NodeSlowEvent,
    NodesSharedOutEvent,
    PlannedAnewEvent,
    ProgressHandedOnEvent,
    SpareWarmEvent,
)
from ravnest.driver.observe.report import (
    CheckpointRefusedEvent,
    CheckpointWrittenEvent,
    ClusterLostEvent,
    ClusterProgress,
    ClusterReplacedEvent,
    EvaluatedEvent,
    FailedEvent,
    NoticeEvent,
    PhaseEvent,
    ProgressEvent,
    ReplacementFailedEvent,
    RestartedEvent,
    RoundCommittedEvent,
    RunEvent,
    StageRestoredEvent,
    StageSuspectedEvent,
    TakenOverEvent,
    WaitsForNodesEvent,
)
from ravnest.formatting import clause, duration, harmless, loss_text, size


class PlainView:
    """An Observer that prints lines. At least `interval_s` seconds pass between two lines of progress."""

    def __init__(self, console: Console, interval_s: float = 5.0) -> None:
        self._console = console
        self._interval_s = interval_s
        self._shown_s: float | None = None
        self._losses = RecentLosses()

    def __enter__(self) -> PlainView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def on(self, event: RunEvent) -> None:
        if isinstance(event, ProgressEvent):
            event = self._losses.shown(event)
            if self._shown_s is not None and event.elapsed_s - self._shown_s < self._interval_s:
                return
            self._shown_s = event.elapsed_s
        line = event_line(event)
        if line is not None:
            self._console.print(line, markup=False, highlight=False)


LOSS_OVER_S = 15.0
"""The loss that is shown of a cluster is the mean of so many seconds; of slower training, that of its last update."""


class RecentLosses:
    """The losses that are shown of a run, which would jump and vanish from second to second without it."""

    def __init__(self) -> None:
        self._recent: dict[str, deque[tuple[float, float]]] = {}

    def shown(self, event: ProgressEvent) -> ProgressEvent:
        """Returns the event with each cluster's recent mean as its loss; None only where it has not had one yet."""
        clusters = tuple(replace(one, loss=self._mean(one, event.elapsed_s)) for one in event.clusters)
        return replace(event, clusters=clusters)

    def _mean(self, cluster: ClusterProgress, now_s: float) -> float | None:
        recent = self._recent.setdefault(cluster.name, deque())
        if cluster.loss is not None:
            recent.append((now_s, cluster.loss))
        while len(recent) > 1 and recent[0][0] <= now_s - LOSS_OVER_S:
            recent.popleft()
        return sum(loss for _, loss in recent) / len(recent) if recent else None


def event_line(event: RunEvent) -> str | None:
    """Returns the line for one event; None for a committed round, which the lines of progress show. Stages on others'
    machines say some of it, so it is harmless to a terminal."""
    words = _words(event)
    return None if words is None else harmless(words)


def _words(event: RunEvent) -> str | None:
    match event:
        case PhaseEvent(name, detail):
            return f"{name}: {detail}" if detail else name
        case ProgressEvent():
            return _progress_line(event)
        case EvaluatedEvent():
            return evaluation_line(event)
        case CheckpointWrittenEvent(path, number):
            return f"checkpoint of round {number}: {path}"
        case CheckpointRefusedEvent(number, reason):
            return f"{clause(reason)}: there is no checkpoint of round {number}, and training goes on; make room"
        case StageSuspectedEvent(stage, node, silent_s, _, heard_again=True):
            return f"{stage} on {node} is heard again, after {silent_s:.0f} s"
        case StageSuspectedEvent(stage, node, silent_s, deadline_s):
            return f"{stage} on {node} has been silent for {silent_s:.0f} s; after {deadline_s:.0f} s it counts as lost"
        case ClusterLostEvent(with_notice=True):
            return f"{event.cluster} has left the run with nothing lost, and {_go_on(event.left)}: {event.reason}"
        case ClusterLostEvent():
            return (
                f"{event.cluster} has left the run with {event.samples:,} samples that were not averaged yet, and"
                f" {_go_on(event.left)}: {event.reason}"
            )
        case ClusterReplacedEvent():
            where = ", ".join(f"{stage} on {node}" for stage, node in event.nodes.items())
            what = "is a new cluster and begins to train" if event.new else "was replaced and trains again"
            return (
                f"{event.cluster} {what} after {duration(event.seconds)}, from the anchor of round {event.round}"
                f" ({where})"
            )
        case TakenOverEvent():
            gone = f"; {', '.join(event.missing)} will be started anew" if event.missing else ""
            return (
                f"taken over after round {event.round}, with {event.samples:,} samples and nothing started anew:"
                f" {', '.join(event.clusters)} train on{gone}"
            )
        case ClusterReplannedEvent():
            gain = "" if event.gained is None else f", and {event.gained:,} samples more by the end of the run"
            where = ", ".join(
                f"{stage} (units {first} to {end - 1}) on {event.nodes[stage]}"
                for stage, (first, end) in event.units.items()
            )
            return (
                f"{event.cluster} is started with {event.how}: {clause(event.reason)}; predicted:"
                f" {duration(event.change_s)} until it trains{gain} ({where})"
            )
        case NodeJoinedEvent(known=True):
            why = f" ({event.why})" if event.why else ""
            return f"node {event.node!r} is back{why}: stages may be started there"
        case NodeJoinedEvent():
            rates = f"{event.up_bytes_per_s / 125e3:.3g} Mbit/s up, {event.down_bytes_per_s / 125e3:.3g} down"
            return (
                f"node {event.node!r} has joined the run as a spare: {format_rate(event.flops_per_s / 1e9)} GFLOP/s,"
                f" {event.memory_bytes / 1e9:.3g} GB, {rates}"
            )
        case NodeSlowEvent(times=1.0):
            return f"node {event.node!r} is as fast again as it was"
        case NodeSlowEvent():
            return f"node {event.node!r} is slow: {event.stage} computes {event.times:.1f} times as long as it used to"
        case NodesSharedOutEvent():
            nodes = f"{', '.join(event.nodes)} of {event.cluster}"
            return f"{clause(event.reason)}: {nodes} may take the place of others' nodes"
        case PlannedAnewEvent(reason, pause_s, gained):
            gain = "" if gained is None else f", and {gained:,} samples more by the end of the run"
            return f"{clause(reason)}: the run is saved for it; predicted: {duration(pause_s)} without training{gain}"
        case ProgressHandedOnEvent(cluster, to, samples):
            return f"{cluster} has handed on to {to} the {samples:,} samples of it that are in no round yet"
        case SpareWarmEvent():
            return (
                f"{event.node} is a warm spare of {event.stage}: it holds the anchor, after {duration(event.seconds)}"
            )
        case StageRestoredEvent(stage, sources, seconds):
            where = ", ".join(f"{size(count)} of {source}" for source, count in sources.items()) or "nobody"
            return f"{stage} holds the anchor after {duration(seconds)}: {where}"
        case ReplacementFailedEvent(cluster, reason, again_s):
            then = "it stays out of the run" if again_s is None else f"the next try is in {again_s:.0f} s"
            return f"{cluster} could not be started anew: {clause(reason)}; {then}"
        case RestartedEvent():
            how = ", planned anew for the nodes that are left" if event.planned_anew else ""
            begins = f"from {event.checkpoint}" if event.checkpoint else "from the start"
            lost = f"; {event.samples:,} samples are lost" if event.samples else ""
            return f"{clause(event.reason)}; begins again {begins} in {event.wait_s:.0f} s{how}{lost}"
        case WaitsForNodesEvent(reason, at_most_s):
            return f"{clause(reason)}; waits for nodes, for {duration(at_most_s)} at most"
        case FailedEvent(reason, at_once=True):
            return reason
        case FailedEvent(reason):
            return f"the run has ended: {reason}"
        case NoticeEvent(text):
            return text
        case RoundCommittedEvent():
            return None


def _go_on(clusters: Sequence[str]) -> str:
    return f"{', '.join(clusters)} {'goes' if len(clusters) == 1 else 'go'} on"


def evaluation_line(event: EvaluatedEvent) -> str:
    extra = "".join(f" · {name} {value:.4g}" for name, value in event.metrics.items())
    what = "final held-out loss" if event.final else f"held-out loss after {event.samples:,} samples"
    return f"{what}: {event.loss:.3f}{extra}"


def _progress_line(event: ProgressEvent) -> str:
    total = f"/{event.total_samples:,}" if event.total_samples is not None else ""
    clusters = " | ".join(_cluster_words(cluster) for cluster in event.clusters)
    return f"{duration(event.elapsed_s)}{_left(event)} · {event.samples:,}{total} samples | {clusters}"


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
        self._losses = RecentLosses()
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
            self._progress = self._losses.shown(event)
            self._round = max([self._round, *(cluster.rounds_merged for cluster in event.clusters)])
        elif isinstance(event, RoundCommittedEvent):
            self._round = event.round
        else:
            say(self._console, event_line(event) or "", "bold" if isinstance(event, EvaluatedEvent) else "dim")

    def render(self) -> RenderableType:
        # The console of a run breaks no line; what is drawn again and again has to keep to the screen.
        phase = Text.assemble((self._phase.name, "bold"), f"  {self._phase.detail}", no_wrap=False, overflow="fold")
        if self._progress is None:
            return phase
        most = max(2, self._console.height - _LINES_BELOW)
        bar = _bar(self._progress, self._round, self._console.width)
        return Group(cluster_table(self._progress, most), bar, phase)


_LINES_BELOW = 6
"""Of the screen, for what is not a row of a cluster."""


def cluster_table(progress: ProgressEvent, most: int | None = None) -> Table:
    """Returns a table with one row for each cluster; of more than `most` clusters the last row is of all the others."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("cluster", overflow="fold")
    for name in ("loss", "samples/s", "staleness", "round", "updates", "samples"):
        table.add_column(name, justify="right", min_width=len(name) + 1, no_wrap=True)
    shown = len(progress.clusters) if most is None or len(progress.clusters) <= most else most - 1
    rest = progress.clusters[shown:]
    for cluster in (*progress.clusters[:shown], *([_together(rest)] if rest else [])):
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


def _together(clusters: Sequence[ClusterProgress]) -> ClusterProgress:
    """Several clusters as one row: their mean loss, what they make together, and the last of them in rounds."""
    losses = [one.loss for one in clusters if one.loss is not None]
    return ClusterProgress(
        name=f"{len(clusters)} more",
        samples=sum(one.samples for one in clusters),
        samples_per_s=sum(one.samples_per_s for one in clusters),
        loss=sum(losses) / len(losses) if losses else None,
        max_staleness=max(one.max_staleness for one in clusters),
        updates=sum(one.updates for one in clusters),
        rounds_merged=min(one.rounds_merged for one in clusters),
    )


def time_left_s(progress: ProgressEvent) -> float | None:
    """Returns the seconds to the end at the present rates; None where it ends by samples alone and has no rate yet."""
    ends_s = [] if progress.stop_s is None else [max(progress.stop_s - progress.elapsed_s, 0.0)]
    samples_per_s = sum(cluster.samples_per_s for cluster in progress.clusters)
    if progress.total_samples is not None and samples_per_s > 0:
        ends_s.append(max(progress.total_samples - progress.samples, 0) / samples_per_s)
    return min(ends_s, default=None)


def _left(progress: ProgressEvent) -> str:
    left_s = time_left_s(progress)
    return f", {duration(left_s)} left" if left_s is not None and left_s >= 1 else ""


_WIDEST_BAR, _LEAST_BAR = 30, 8


def _bar(progress: ProgressEvent, round_number: int, width: int) -> RenderableType:
    """A bar with how far it is and what is left beside it, or below it where a line of `width` has not room for it."""
    total = progress.total_samples
    words = f"{progress.samples:,}{f' of {total:,}' if total is not None else ''} samples · round {round_number}"
    words += f" · {duration(progress.elapsed_s)}{_left(progress)}"
    beside = width - len(words) - 1 >= _LEAST_BAR
    room = min(_WIDEST_BAR, width - len(words) - 1 if beside else width)
    bar = Bar(BarColumn(bar_width=room), *([TextColumn("{task.description}")] if beside else []))
    by_time = total is None and progress.stop_s is not None
    of, completed = (progress.stop_s, int(progress.elapsed_s)) if by_time else (total, progress.samples)
    bar.add_task(words, total=of, completed=completed)
    return bar if beside else Group(bar, Text(words, no_wrap=False, overflow="fold"))


def note(said: str) -> None:
    """Prints a note for the user on standard error, on a terminal broken between words."""
    say(console(stderr=True), f"note: {said}")


def warning(said: str) -> None:
    """Prints a warning on standard error: something is possible but probably not meant."""
    say(console(stderr=True), f"ravnest: warning: {said}")
