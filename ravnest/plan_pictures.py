"""Pictures of plans as PNG files: who runs which units, and of large fleets what matters of them.

In: a plan. Out: a file. A plan of up to FEW_STAGES stages shows each with its words. A larger one shows its clusters as
rows of boxes in the colours of their regions, of many clusters the first, beside them the slowest links in use and the
spares by region; its picture has the same size whatever the fleet's.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from cluster_planner import Cluster, ClusterPrediction, Plan, format_count, format_rate
from ravnest.formatting import listed
from ravnest.pictures import blank, save

_ROW, _BOX = 1.0, 0.66  # a cluster's row, and the height of its boxes
_STAGE_IN = 1.4  # the width of a node's name

LEGEND = (
    "busy: the part of the time that the stage computes, sends or receives, whichever takes longest; waiting for"
    " averaging is not in it.\n"
    "memory: what the stage needs, of what its node lends. ring: the stages that average these units."
)


FEW_STAGES = 24
"""A plan of more stages is drawn without words in its boxes."""
MOST_ROWS = 32
"""Of more clusters the first are drawn."""
LONGEST_ROW = 16
"""A plan with more stages in one cluster is drawn without words, too."""
SLOWEST_LINKS = 10
MOST_REGIONS = 10
"""So many regions have a colour of their own: those with most stages."""
_OTHER = "#bbbbbb"
_MBPS, _MS = 125_000.0, 1e-3

LARGE_LEGEND = (
    "colour: the node's region. Dark part of a box: how much of the time the stage computes, sends or receives,"
    " whichever takes longest;\nwaiting for averaging is not in it. Left to right: the model's units, to scale."
)


def draw_plan(plan: Plan, path: Path) -> None:
    """Draw a plan: clusters as rows of stages, units to scale from left to right."""
    stages = [len(cluster.stages) for cluster in plan.clusters]
    if sum(stages) > FEW_STAGES or max(stages) > LONGEST_ROW:
        _draw_large(plan, path)
    else:
        _draw_small(plan, path)


def _draw_small(plan: Plan, path: Path) -> None:
    """Draw each stage with its words, and each ring as a band across the clusters."""
    clusters, units = len(plan.clusters), len(plan.costs.units)
    narrowest = min(end - start for cluster in plan.clusters for start, end in (s.units for s in cluster.stages))
    width_in = 1.3 * _STAGE_IN * units / narrowest  # the narrowest stage can hold its words
    figure, axes = blank(width_in=min(max(width_in, 9.0), 24.0), height_in=1.7 + 1.3 * clusters)
    _draw_rings(axes, plan)
    for row, (cluster, predicted) in enumerate(zip(plan.clusters, plan.predicted.clusters, strict=True)):
        middle = -row * _ROW
        axes.text(-0.02 * units, middle, cluster.name, ha="right", va="center", weight="bold", fontsize=11)
        speed = f"{format_rate(predicted.samples_per_s)} samples/s\nwindow {cluster.window}"
        axes.text(1.02 * units, middle, speed, ha="left", va="center", fontsize=9)
        for stage, costs in zip(cluster.stages, predicted.stages, strict=True):
            busy = predicted.busy(costs, plan.workload.micro_batch)
            memory = costs.memory_bytes / plan.fleet.node(stage.node).memory_bytes
            words = f"units [{stage.units[0]}, {stage.units[1]})\nbusy {busy:.0%}\nmemory {memory:.0%}"
            _draw_stage(axes, stage.units, middle, stage.node, words, busy)
    axes.set_xlim(-0.1 * units, 1.16 * units)
    lowest = -(clusters - 1) * _ROW - 0.62
    axes.text(0.0, lowest, LEGEND, ha="left", va="top", fontsize=8, color="#444444")
    axes.set_ylim(lowest - 0.25, 0.78)
    axes.axis("off")
    spare = f" · spare: {listed([spare.node for spare in plan.spares])}" if plan.spares else ""
    axes.set_title(_title(plan) + spare, loc="left", fontsize=12)
    save(figure, path)


def _title(plan: Plan) -> str:
    title = f"{format_count(len(plan.fleet.nodes), 'node')}, {format_count(len(plan.clusters), 'cluster')}"
    return f"{title}: {format_rate(plan.predicted.samples_per_s)} samples/s predicted"


def _draw_stage(axes: Axes, units: tuple[int, int], middle: float, node: str, words: str, busy: float) -> None:
    start, end = units
    inset = 0.06
    shade = colormaps["YlOrRd"](0.05 + 0.5 * busy)
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


def _draw_large(plan: Plan, path: Path) -> None:
    figure, axes = blank(width_in=15.0, height_in=9.5)
    units, colors = len(plan.costs.units), _colors(plan)
    shown = list(zip(plan.clusters, plan.predicted.clusters, strict=True))[:MOST_ROWS]
    # Few rows are as high as those of a small plan, many fill the picture.
    row = 1.0 / max(len(shown), 12)
    for at, (cluster, predicted) in enumerate(shown):
        _draw_row(axes, plan, cluster, predicted, colors, (1.0 - at * row, 0.8 * row))
    left = 1.0 - len(shown) * row - 0.01
    if more := plan.clusters[MOST_ROWS:]:
        rates = [one.samples_per_s for one in plan.predicted.clusters[MOST_ROWS:]]
        words = f"and {format_count(len(more), 'more cluster')} of {format_rate(min(rates))} to"
        axes.text(0.0, left, f"{words} {format_rate(max(rates))} samples/s each", va="top", fontsize=9)
        left -= 0.03
    axes.text(0.0, left, LARGE_LEGEND, va="top", fontsize=8, color="#444444")
    top = 1.0
    for heading, lines in (
        ("regions: stages and spares", _regions_told(plan, colors)),
        (f"the {SLOWEST_LINKS} slowest links in use", [(words, "black") for words in slowest_links(plan)]),
        ("what limits", [(words, "black") for words in textwrap.wrap(plan.predicted.bottleneck, 46)]),
    ):
        axes.text(1.13 * units, top, heading, va="top", weight="bold", fontsize=10)
        for words, color in lines:
            top -= 0.026
            axes.text(1.13 * units, top, words, va="top", fontsize=8.5, color=color)
        top -= 0.05
    axes.set_xlim(-0.05 * units, 1.55 * units)
    axes.set_ylim(min(left - 0.06, top), 1.02)
    axes.axis("off")
    axes.set_title(_title(plan), loc="left", fontsize=13)
    save(figure, path)


def _draw_row(
    axes: Axes,
    plan: Plan,
    cluster: Cluster,
    predicted: ClusterPrediction,
    colors: Mapping[str | None, str],
    place: tuple[float, float],
) -> None:
    """Draw a cluster. `place`: the upper edge of its boxes, and their height."""
    (top, height), units = place, len(plan.costs.units)
    for stage, costs in zip(cluster.stages, predicted.stages, strict=True):
        start, end = stage.units
        color = colors.get(plan.fleet.node(stage.node).region, _OTHER)
        busy = predicted.busy(costs, plan.workload.micro_batch)
        corner, width = (start + 0.03, top - height), end - start - 0.06
        axes.add_patch(Rectangle(corner, width, height, facecolor=color, alpha=0.35, linewidth=0))
        axes.add_patch(Rectangle(corner, width, height * busy, facecolor=color, alpha=0.75, linewidth=0))
        axes.add_patch(Rectangle(corner, width, height, fill=False, edgecolor="#444444", linewidth=0.6))
        # About so many characters of 6 points go into the box.
        if len(stage.node) <= 1.35 * 100 * width / (1.6 * units):
            axes.text((start + end) / 2, top - height / 2, stage.node, ha="center", va="center", fontsize=6)
    axes.text(-0.01 * units, top - height / 2, cluster.name, ha="right", va="center", weight="bold", fontsize=8)
    axes.text(1.01 * units, top - height / 2, format_rate(predicted.samples_per_s) + "/s", va="center", fontsize=8)


def _colors(plan: Plan) -> dict[str | None, str]:
    """Return the colour of each of the regions with most stages."""
    regions = Counter(plan.fleet.node(s.node).region for cluster in plan.clusters for s in cluster.stages)
    most = sorted(regions, key=lambda region: (-regions[region], str(region)))[:MOST_REGIONS]
    return {region: f"C{number}" for number, region in enumerate(most)}


def _regions_told(plan: Plan, colors: Mapping[str | None, str]) -> list[tuple[str, str]]:
    """Return a line for each region with a colour, and one for all others: (words, colour)."""
    spares = Counter(plan.fleet.node(spare.node).region for spare in plan.spares)
    stages = Counter(plan.fleet.node(s.node).region for cluster in plan.clusters for s in cluster.stages)
    lines = []
    for region, color in colors.items():
        spare = f", {spares[region]} spare" if spares[region] else ""
        lines.append((f"■ {region or 'no region'}: {stages[region]}{spare}", color))
    others = [region for region in {*stages, *spares} if region not in colors]
    if others:
        running, idle = (sum(counts[region] for region in others) for counts in (stages, spares))
        spare = f", {idle} spare" if idle else ""
        lines.append((f"■ {format_count(len(others), 'other region')}: {running}{spare}", _OTHER))
    return lines


def slowest_links(plan: Plan, count: int = SLOWEST_LINKS) -> list[str]:
    """Return the links over which the plan sends that carry least: between neighbours in a pipeline or in a ring."""
    found: dict[tuple[str, str], str] = {}
    for cluster in plan.clusters:
        for first, second in pairwise(cluster.stages):
            found.setdefault((first.node, second.node), cluster.name)
            found.setdefault((second.node, first.node), cluster.name)
    for number, ring in enumerate(plan.rings):
        members = [plan.cluster(name).stages[stage].node for name, stage in ring.members]
        if len(members) > 1:
            for pair in pairwise((*members, members[0])):
                found.setdefault(pair, f"ring {number}")
    fleet = plan.fleet
    worst = sorted(found, key=lambda pair: (fleet.flow_bytes_per_s(*pair), -fleet.link(*pair).latency_s, pair))
    return [
        f"{a} → {b}: {fleet.flow_bytes_per_s(a, b) / _MBPS:.3g} Mbit/s, {fleet.link(a, b).latency_s / _MS:.3g} ms"
        f" ({found[a, b]})"
        for a, b in worst[:count]
    ]
