"""Pictures as PNG files: a plan, the losses of a run, and a simulated run.

In: a plan, the lines of metrics.jsonl, or a `SimulatedRun`. Out: a file. Matplotlib draws with its file backend, so
that no display is needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from cluster_planner import Plan, format_count, format_rate
from ravnest.formatting import listed
from ravnest.simulator.simulated_run import SimulatedRun

Curve = Sequence[tuple[int, float]]
"""(samples of the whole fleet, loss)"""

_ROW, _BOX = 1.0, 0.66  # a cluster's row, and the height of its boxes
_STAGE_IN = 1.4  # the width of a node's name

LEGEND = (
    "load: what a micro-batch takes of a stage (computing, sending or receiving, whichever takes longest), against the"
    " longest of its cluster.\n"
    "memory: what the stage needs, of what its node lends. ring: the stages that average these units."
)


def draw_plan(plan: Plan, path: Path) -> None:
    """Draw a plan: clusters as rows of stages, units to scale from left to right, and each ring as a band across the
    clusters.
    """
    clusters, units = len(plan.clusters), len(plan.costs.units)
    narrowest = min(end - start for cluster in plan.clusters for start, end in (s.units for s in cluster.stages))
    width_in = 1.3 * _STAGE_IN * units / narrowest  # the narrowest stage can hold its words
    figure, axes = _blank(width_in=min(max(width_in, 9.0), 24.0), height_in=1.7 + 1.3 * clusters)
    _draw_rings(axes, plan)
    for row, (cluster, predicted) in enumerate(zip(plan.clusters, plan.predicted.clusters, strict=True)):
        middle = -row * _ROW
        axes.text(-0.02 * units, middle, cluster.name, ha="right", va="center", weight="bold", fontsize=11)
        speed = f"{format_rate(predicted.samples_per_s)} samples/s\nwindow {cluster.window}"
        axes.text(1.02 * units, middle, speed, ha="left", va="center", fontsize=9)
        for stage, costs in zip(cluster.stages, predicted.stages, strict=True):
            load = costs.occupancy_s / predicted.bottleneck_s if predicted.bottleneck_s > 0 else 0.0
            memory = costs.memory_bytes / plan.fleet.node(stage.node).memory_bytes
            words = f"units [{stage.units[0]}, {stage.units[1]})\nload {load:.0%}\nmemory {memory:.0%}"
            _draw_stage(axes, stage.units, middle, stage.node, words, load)
    axes.set_xlim(-0.1 * units, 1.16 * units)
    lowest = -(clusters - 1) * _ROW - 0.62
    axes.text(0.0, lowest, LEGEND, ha="left", va="top", fontsize=8, color="#444444")
    axes.set_ylim(lowest - 0.25, 0.78)
    axes.axis("off")
    title = f"{format_count(len(plan.fleet.nodes), 'node')}, {format_count(clusters, 'cluster')}"
    title += f": {format_rate(plan.predicted.samples_per_s)} samples/s predicted"
    if plan.spares:
        title += f" · spare: {listed([spare.node for spare in plan.spares])}"
    axes.set_title(title, loc="left", fontsize=12)
    save(figure, path)


def _draw_stage(axes: Axes, units: tuple[int, int], middle: float, node: str, words: str, load: float) -> None:
    start, end = units
    inset = 0.06
    shade = colormaps["YlOrRd"](0.05 + 0.5 * min(load, 1.0))
    corner = (start + inset, middle - _BOX / 2)
    axes.add_patch(
        Rectangle(
            corner,
            end - start - 2 * inset,
            _BOX,
            facecolor=shade,
            edgecolor="#444444",
            linewidth=1.2,
            zorder=2,
        )
    )
    centre = (start + end) / 2
    axes.text(centre, middle + 0.19, node, ha="center", va="center", weight="bold", fontsize=10, zorder=3)
    axes.text(centre, middle - 0.09, words, ha="center", va="center", fontsize=8, zorder=3)


def _draw_rings(axes: Axes, plan: Plan) -> None:
    """Draw the rings behind the boxes, so that a band is seen above, between and below the stages that it joins."""
    top, bottom = _BOX / 2 + 0.08, -(len(plan.clusters) - 1) * _ROW - _BOX / 2 - 0.08
    palette = colormaps["tab10"]
    for i, ring in enumerate(plan.rings):
        start, end = ring.units
        color = palette(i % 10)
        axes.add_patch(
            Rectangle(
                (start + 0.02, bottom),
                end - start - 0.04,
                top - bottom,
                facecolor=color,
                alpha=0.28,
                zorder=1,
            )
        )
        axes.text((start + end) / 2, top + 0.04, f"ring {i}", ha="center", va="bottom", fontsize=9, color=color)


def draw_loss_curve(records: Iterable[Mapping[str, Any]], baselines: Mapping[str, float], path: Path) -> None:
    """Draw the training loss of each cluster (thin), the held-out loss (thick, with marks) and baselines (dashed).

    records: lines of metrics.jsonl, as `ravnest.driver.observe.metrics_file.read_metrics` gives them; other kinds are
    skipped.
    """
    trained: dict[str, list[tuple[int, float]]] = defaultdict(list)
    held_out: list[tuple[int, float]] = []
    for record in records:
        if record["kind"] == "progress":
            for cluster in record["clusters"]:
                if cluster["loss"] is not None:
                    trained[cluster["name"]].append((record["samples"], cluster["loss"]))
        elif record["kind"] == "evaluated" and record["loss"] is not None:
            held_out.append((record["samples"], record["loss"]))
    figure, axes = _blank(width_in=9.0, height_in=5.0)
    for i, (name, points) in enumerate(sorted(trained.items())):
        axes.plot(*zip(*points, strict=True), linewidth=0.9, alpha=0.8, color=f"C{i}", label=f"{name}, training")
    if held_out:
        axes.plot(*zip(*sorted(held_out), strict=True), linewidth=2.4, marker="o", color="black", label="held out")
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
    save(figure, path)


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


def _blank(width_in: float, height_in: float) -> tuple[Figure, Axes]:
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
    figure.savefig(temporary, dpi=150, format="png")
    temporary.replace(path)


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
