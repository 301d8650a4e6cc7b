"""Pictures as PNG files: the losses of a run, and a simulated run.

In: the lines of metrics.jsonl, or a `SimulatedRun`. Out: a file. Matplotlib draws with its file backend, so
that no display is needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from cluster_planner import format_rate
from ravnest.simulator.simulated_run import SimulatedRun

Curve = Sequence[tuple[int, float]]
"""(samples of the whole fleet, loss)"""


def that_counts(curve: Iterable[tuple[int, float]]) -> Curve:
    """The points without those that a run made anew: resumed from a checkpoint it goes back to fewer samples."""
    kept: list[tuple[int, float]] = []
    for point in curve:
        while kept and kept[-1][0] >= point[0]:
            kept.pop()
        kept.append(point)
    return kept


def draw_loss_curve(records: Iterable[Mapping[str, Any]], baselines: Mapping[str, float], path: Path) -> None:
    """Draw `loss_figure` into a file."""
    save(loss_figure(records, baselines), path)


def loss_figure(records: Iterable[Mapping[str, Any]], baselines: Mapping[str, float]) -> Figure:
    """Return a figure of the training loss of each cluster (thin), the held-out loss (thick, with marks) and baselines
    (dashed).

    records: lines of metrics.jsonl or history.jsonl, as `ravnest.driver.observe.metrics_file` gives them; other kinds
    are skipped.
    """
    trained: dict[str, list[tuple[int, float]]] = defaultdict(list)
    held_out: list[tuple[int, float]] = []
    for record in records:
        if record["kind"] == "progress":
            for cluster in record["clusters"]:
                if cluster["loss"] is not None:
                    trained[cluster["name"]].append((record["samples"], cluster["loss"]))
        elif record["kind"] == "past":
            for name, loss in record["losses"].items():
                trained[name].append((record["samples"], loss))
        elif record["kind"] == "evaluated" and record["loss"] is not None:
            held_out.append((record["samples"], record["loss"]))
    figure, axes = blank(width_in=9.0, height_in=5.0)
    for i, (name, points) in enumerate(sorted(trained.items())):
        axes.plot(
            *zip(*that_counts(points), strict=True), linewidth=0.9, alpha=0.8, color=f"C{i}", label=f"{name}, training"
        )
    if held_out:
        axes.plot(*zip(*that_counts(held_out), strict=True), linewidth=2.4, marker="o", color="black", label="held out")
    for i, (name, loss) in enumerate(baselines.items()):
        color = f"C{len(trained) + i}"
        axes.axhline(loss, linestyle="--", linewidth=1.3, color=color, label=f"{name}: {loss:.2f}")
    axes.set_xlabel("samples of the whole fleet")
    axes.set_ylabel("loss")
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if trained or held_out or baselines:
        axes.legend(frameon=False)
    return figure


def draw_comparison(runs: Mapping[str, tuple[Curve, Curve]], path: Path) -> None:
    """Draw several runs in one picture: by name, the training loss (thin) and the held-out loss (thick, with marks).

    A curve is a sequence of (samples of the whole fleet, loss).
    """
    figure, (axes,) = panels(1, width_in=9.0, height_in=5.0)
    for number, (name, (trained, held_out)) in enumerate(runs.items()):
        color = f"C{number}"
        if trained:
            axes.plot(*zip(*trained, strict=True), linewidth=0.9, alpha=0.6, color=color, label=f"{name}, training")
        if held_out:
            axes.plot(*zip(*held_out, strict=True), linewidth=2.4, marker="o", color=color, label=f"{name}, held out")
    axes.set_xlabel("samples of the whole fleet")
    axes.set_ylabel("loss")
    if any(trained or held_out for trained, held_out in runs.values()):
        axes.legend(frameon=False)
    save(figure, path)


def blank(width_in: float, height_in: float) -> tuple[Figure, Axes]:
    """Return a figure with one plot."""
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def panels(count: int, width_in: float, height_in: float) -> tuple[Figure, list[Axes]]:
    """Return a figure with `count` plots side by side."""
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    plots = [figure.add_subplot(1, count, index + 1) for index in range(count)]
    for axes in plots:
        axes.grid(alpha=0.25)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return figure, plots


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG. An existing file is replaced atomically, so that a reader always sees a whole picture."""
    temporary = path.with_name(f".{path.name}.tmp")
    _as_written(figure).savefig(temporary, dpi=150, format="png")
    temporary.replace(path)


def png_of(figure: Figure, dpi: int = 100) -> bytes:
    """Return a figure as the contents of a PNG file."""
    written = BytesIO()
    _as_written(figure).savefig(written, dpi=dpi, format="png")
    return written.getvalue()


def _as_written(figure: Figure) -> Figure:
    """Return the figure with all its text as it stands: what is between two dollar signs of a name is no formula."""
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    return figure


_LEAST_SHARE = 0.0005


def time_unit(seconds: float) -> tuple[float, str]:
    """(seconds of a unit, its name): the unit in which an axis of this length has readable figures."""
    if seconds > 2 * 3600:
        return 3600.0, "h"
    return (60.0, "min") if seconds > 120 else (1.0, "s")


def draw_simulation(result: SimulatedRun, predicted_samples_per_s: float, path: Path, *, steady: bool) -> None:
    """Draw a simulated run as three plots side by side: the throughput over time, the lost time, and the staleness.

    `steady` says whether the run has shown a steady state, whose mean is then drawn; otherwise the mean until the drain
    is drawn.
    """
    figure, (speed, lost, stale) = panels(3, width_in=13.0, height_in=4.0)
    unit_s, unit = time_unit(result.drain_s)
    speed.plot([end_s / unit_s for end_s, _ in result.over_time], [each for _, each in result.over_time], linewidth=1.2)
    from_s, mean = mean_of(result, steady=steady)
    label = f"mean{' of the steady state' if steady else ''}: {format_rate(mean)}"
    speed.hlines(mean, from_s / unit_s, result.drain_s / unit_s, linewidth=1.5, color="C3", label=label)
    speed.axhline(
        predicted_samples_per_s,
        linestyle="--",
        linewidth=1.0,
        color="#444444",
        label=f"predicted: {format_rate(predicted_samples_per_s)}",
    )
    speed.set_ylim(0, 1.1 * max([predicted_samples_per_s, *(each for _, each in result.over_time)]))
    speed.set_xlabel(f"time since the start, {unit}")
    speed.set_ylabel("samples/s of the fleet")
    speed.legend(frameon=False)
    causes = sorted((share, cause) for cause, share in result.lost.items() if share >= _LEAST_SHARE)
    lost.barh([cause for _, cause in causes], [100 * share for share, _ in causes], color="C1")
    lost.set_xlabel("% of all stages' time lost")
    total = sum(result.staleness.values()) or 1
    stale.bar(
        [str(updates) for updates in result.staleness],
        [100 * count / total for count in result.staleness.values()],
        color="C2",
    )
    stale.set_xlabel("staleness, updates")
    stale.set_ylabel("% of gradients")
    save(figure, path)


def mean_of(result: SimulatedRun, *, steady: bool) -> tuple[float, float]:
    """(the moment from which on it is the mean, samples per second of the fleet), until the drain."""
    if steady:
        return result.steady_from_s, result.samples_per_s
    spans = [each for _, each in result.over_time]
    return 0.0, sum(spans) / max(1, len(spans))
