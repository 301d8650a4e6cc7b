"""Pictures of plans as PNG files: who runs which units, and of large fleets what matters of them.

In: a plan. Out: a file. A plan of up to FEW_STAGES stages shows each with its words, and below them the slowest links
in use. A larger one shows its clusters as rows of boxes in the colours of their regions. Of many clusters each region
shows some, from its slowest to its fastest, and how many more it has. Beside them stand a map of the regions, on which
near is a short latency and the slowest links are red, the slowest links in use, and the spares by region. The picture
has the same size whatever the fleet's.
"""

from __future__ import annotations

import math
import textwrap
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from cluster_planner import Cluster, ClusterPrediction, Plan, format_count, format_rate, region_places
from ravnest.formatting import TWICE_FORWARD, listed
from ravnest.pictures import blank, save

_ROW, _BOX = 1.0, 0.66  # a cluster's row, and the height of its boxes
_STAGE_IN = 1.4  # the least width of a box
_NAME_IN, _WORDS_IN = 0.1, 0.06  # the width of a character in a node's name, and in the words below it
_LINE = 0.11  # the height of a line below the rows

LEGEND = "busy: the part of the time that the stage computes.\nmemory: what the stage needs, of what its node lends.{}"
RING = " ring: the stages that average these units."

FEW_STAGES = 24
"""A plan of more stages is drawn without words in its boxes."""
FEW_ROWS = 10
"""And one of more clusters, too: it would be higher than wide."""
MOST_ROWS = 32
"""Of more clusters some of each region are drawn."""
LONGEST_ROW = 16
"""A plan with more stages in one cluster is drawn without words, too."""
SLOWEST_LINKS, FEW_LINKS = 10, 3
"""So many of the slowest links in use are named beside a large plan, and below a small one."""
LONGEST_NAME = 16
"""Where names have little room, longer ones lack their middle."""
MOST_REGIONS = 10
"""So many regions have a colour of their own: those with most stages."""
_OTHER, _SLOW = "#bbbbbb", "#c0392b"
_ROOM_FOR_WORDS = 0.3
"""A line of the map that is shorter, as a part of the map, has no words."""
_MBPS, _MS = 125_000.0, 1e-3

LARGE_LEGEND = (
    "colour: the node's region. Dark part of a box: how much of the time the stage computes.\n"
    "Left to right: the model's units, to scale. Red on the map: the slowest links."
)
HATCHED = f"\nHatched: {TWICE_FORWARD}."


def draw_plan(plan: Plan, path: Path) -> None:
    """Draw a plan: clusters as rows of stages, units to scale from left to right."""
    stages = [len(cluster.stages) for cluster in plan.clusters]
    if sum(stages) > FEW_STAGES or len(stages) > FEW_ROWS or max(stages) > LONGEST_ROW:
        _draw_large(plan, path)
    else:
        _draw_small(plan, path)


def _recomputes(plan: Plan) -> bool:
    """Say whether a stage of the plan recomputes."""
    return any(stage.recomputes for cluster in plan.clusters for stage in cluster.stages)


def _legend(plan: Plan) -> str:
    """Return what the words in the boxes of a small plan mean, as far as it has them."""
    several = len(plan.clusters) > 1
    twice = f"\n{TWICE_FORWARD}." if _recomputes(plan) else ""
    return LEGEND.format((RING if several else "") + twice)


def _draw_small(plan: Plan, path: Path) -> None:
    """Draw each stage with its words, each ring as a band across the clusters, and the slowest links in words."""
    clusters, units = len(plan.clusters), len(plan.costs.units)
    names = _short_names(plan)
    regions = len({node.region for node in plan.fleet.nodes}) > 1
    links = slowest_links(plan, FEW_LINKS)
    told = "; ".join(link.replace(" ", "\N{NO-BREAK SPACE}") for link in links)
    below = [_legend(plan), *([f"slowest links in use: {told}"] if links else [])]
    if plan.spares:
        below.append(f"spare: {listed([spare.node for spare in plan.spares])}")
    narrowest = min(end - start for cluster in plan.clusters for start, end in (s.units for s in cluster.stages))
    longest = max(len(names[stage.node]) for cluster in plan.clusters for stage in cluster.stages)
    # The narrowest stage can hold its words.
    width_in = min(max(1.3 * max(_STAGE_IN, _NAME_IN * min(longest, 24)) * units / narrowest, 9.0), 24.0)
    below = [line for words in below for line in _wrapped(words, int(0.85 * width_in / _WORDS_IN))]
    lowest = -(clusters - 1) * _ROW - 0.62
    bottom = lowest - _LINE * len(below)
    figure, axes = blank(width_in=width_in, height_in=1.3 * (0.78 - bottom) + 0.5)
    if clusters > 1:
        _draw_rings(axes, plan)
    for row, (cluster, predicted) in enumerate(zip(plan.clusters, plan.predicted.clusters, strict=True)):
        middle = -row * _ROW
        axes.text(-0.02 * units, middle, cluster.name, ha="right", va="center", weight="bold", fontsize=11)
        speed = f"{format_rate(predicted.samples_per_s)} samples/s\nwindow {cluster.window}"
        axes.text(1.02 * units, middle, speed, ha="left", va="center", fontsize=9)
        for stage, costs in zip(cluster.stages, predicted.stages, strict=True):
            busy = predicted.busy(costs, plan.workload.micro_batch)
            node = plan.fleet.node(stage.node)
            memory = (costs.memory_bytes + node.beyond_bytes) / node.memory_bytes
            words = [f"units [{stage.units[0]}, {stage.units[1]})"]
            figures = [f"busy {busy:.0%}", f"memory {memory:.0%}"]
            words += ["twice forward", ", ".join(figures)] if stage.recomputes else figures
            box_in = width_in / 1.26 * (stage.units[1] - stage.units[0]) / units
            if regions:
                words.insert(0, _shortened(node.region or "no region", int(box_in / _WORDS_IN)))
            name = _shortened(names[stage.node], int(box_in / _NAME_IN))
            _draw_stage(axes, stage.units, middle, name, "\n".join(words), busy)
    axes.set_xlim(-0.1 * units, 1.16 * units)
    axes.text(0.0, lowest, "\n".join(below), ha="left", va="top", fontsize=8, color="#444444")
    axes.set_ylim(bottom, 0.78)
    axes.axis("off")
    axes.set_title(_title(plan), loc="left", fontsize=12)
    save(figure, path)


def _short_names(plan: Plan) -> dict[str, str]:
    """Return the node names without a domain that all of them have."""
    names = plan.fleet.names
    domains = (names[0][at:] for at, character in enumerate(names[0]) if character == ".")
    domain = next((each for each in domains if all(name.endswith(each) for name in names)), "")
    return {name: name.removesuffix(domain) for name in names}


def _shortened(name: str, most: int = LONGEST_NAME) -> str:
    """Return a name of at most so many characters, but three: a longer one lacks its middle."""
    if len(name) <= (most := max(most, 3)):
        return name
    return f"{name[: most // 2]}…{name[len(name) - (most - 1) // 2 :]}"


def _wrapped(words: str, width: int) -> list[str]:
    return [line for part in words.split("\n") for line in textwrap.wrap(part, width, break_on_hyphens=False)]


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
    axes.text(centre, middle + 0.22, node, ha="center", va="center", weight="bold", fontsize=10, zorder=3)
    axes.text(centre, middle - 0.08, words, ha="center", va="center", fontsize=8, zorder=3)


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
    blocks, names = _blocks(plan, colors), _short_names(plan)
    lines = sum(len(shown) + bool(rest) for shown, rest in blocks)
    # Few rows are as high as those of a small plan, many fill the picture.
    row, top = 1.0 / max(lines, 12), 1.0
    for shown, rest in blocks:
        for number in shown:
            cluster, predicted = plan.clusters[number], plan.predicted.clusters[number]
            _draw_row(axes, plan, cluster, predicted, colors, names, (top, 0.8 * row))
            top -= row
        if rest:
            axes.text(0.03, top - 0.4 * row, rest, va="center", fontsize=8, style="italic", color="#444444")
            top -= row
    legend = LARGE_LEGEND + (HATCHED if _recomputes(plan) else "")
    axes.text(0.0, top - 0.01, legend, va="top", fontsize=8, color="#444444")
    low, top, beside = top - 0.07, 1.0, 1.13 * units
    places = region_places(plan.fleet, [region for region in colors if region is not None])
    if len(places) > 1:
        axes.text(beside, top, "map of the regions, near: a short latency", va="top", weight="bold", fontsize=10)
        _draw_map(axes, plan, colors, places, (beside, top - 0.055, 0.36 * units, 0.25))
        top -= 0.36
    for heading, told in (
        ("regions: stages and spares", _regions_told(plan, colors)),
        (f"the {SLOWEST_LINKS} slowest links in use", [(words, "black") for words in slowest_links(plan)]),
        ("what limits", [(words, "black") for words in _wrapped(plan.predicted.bottleneck, 46)]),
    ):
        axes.text(beside, top, heading, va="top", weight="bold", fontsize=10)
        for words, color in told:
            top -= 0.024
            axes.text(beside, top, words, va="top", fontsize=8.5, color=color)
        top -= 0.04
    axes.set_xlim(-0.05 * units, 1.55 * units)
    axes.set_ylim(min(low, top), 1.02)
    axes.axis("off")
    axes.set_title(_title(plan), loc="left", fontsize=13)
    save(figure, path)


def _blocks(plan: Plan, colors: Mapping[str | None, str]) -> list[tuple[Sequence[int], str]]:
    """Return which clusters are drawn, by their numbers, and below them how many more there are like them: all of them
    where they are few, else some of each region, from the slowest to the fastest."""
    rates = [one.samples_per_s for one in plan.predicted.clusters]
    if len(rates) <= MOST_ROWS:
        return [(range(len(rates)), "")]
    of: dict[str | None, list[int]] = defaultdict(list)
    for number, cluster in enumerate(plan.clusters):
        regions = Counter(plan.fleet.node(stage.node).region for stage in cluster.stages)
        of[max(regions, key=lambda region: (regions[region], str(region)))].append(number)
    blocks: list[tuple[Sequence[int], str]] = []
    most = sorted(of, key=lambda region: (region not in colors, -len(of[region]), str(region)))[:MOST_REGIONS]
    for region in sorted(most, key=str):
        numbers = sorted(of[region], key=lambda number: rates[number])
        count = max(2, min(len(numbers), (MOST_ROWS - len(most)) // len(most)))
        last = len(numbers) - 1
        shown = [numbers[each] for each in sorted({round(at * last / (count - 1)) for at in range(count)})]
        more = len(numbers) - len(shown)
        where = "" if region is None else f" of {region}"
        span = f"{format_rate(rates[numbers[0]])} to {format_rate(rates[numbers[-1]])} samples/s"
        blocks.append((shown, f"and {format_count(more, 'more cluster')}{where}, {span} in all" if more else ""))
    left = sum(len(of[region]) for region in of if region not in most)
    return [*blocks, ((), f"and {format_count(left, 'cluster')} of other regions")] if left else blocks


def _draw_map(
    axes: Axes,
    plan: Plan,
    colors: Mapping[str | None, str],
    places: Mapping[str, tuple[float, float]],
    frame: tuple[float, float, float, float],
) -> None:
    """Draw regions as discs, larger for more stages, and lines between those that send to each other, red where that is
    over one of the slowest links. `frame`: left, upper edge, width and height."""
    left, top, width, height = frame
    at = {name: (left + width * (0.05 + 0.8 * x), top - height * (0.95 - 0.9 * y)) for name, (x, y) in places.items()}
    region_of = {node.name: node.region for node in plan.fleet.nodes}

    def between(pair: tuple[str, str]) -> tuple[str, ...]:
        return tuple(sorted(str(region_of[name]) for name in pair))

    slowest = _slowest(plan)
    slow = {between(pair) for pair in slowest[:SLOWEST_LINKS]}
    # Of a pair of regions the slowest link is told.
    pairs = {between(pair): pair for pair in reversed(slowest)}
    for (one, other), (a, b) in sorted(pairs.items()):
        if one == other or one not in at or other not in at:
            continue
        (x0, y0), (x1, y1) = at[one], at[other]
        color = _SLOW if (one, other) in slow else "#999999"
        axes.plot((x0, x1), (y0, y1), color=color, linewidth=0.8, zorder=1)
        told = f"{plan.fleet.link(a, b).latency_s / _MS:.3g} ms"
        if math.dist(places[one], places[other]) < _ROOM_FOR_WORDS:
            continue
        back = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
        x, y = x0 + 0.36 * (x1 - x0), y0 + 0.36 * (y1 - y0)
        axes.text(x, y, told, ha="center", va="center", fontsize=6.5, color="#444444", zorder=2, bbox=back)
    stages = Counter(region_of[stage.node] for cluster in plan.clusters for stage in cluster.stages)
    largest = max(stages.values())
    for name, (x, y) in at.items():
        axes.scatter([x], [y], s=40 + 120 * stages[name] / largest, color=colors[name], zorder=3)
        back = {"facecolor": "white", "edgecolor": "none", "pad": 0.3, "alpha": 0.8}
        below = y - 0.014
        axes.text(x, below, name, ha="center", va="top", fontsize=8, color=colors[name], zorder=4, bbox=back)


def _draw_row(
    axes: Axes,
    plan: Plan,
    cluster: Cluster,
    predicted: ClusterPrediction,
    colors: Mapping[str | None, str],
    names: Mapping[str, str],
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
        hatch = "////" if stage.recomputes else None
        axes.add_patch(Rectangle(corner, width, height, fill=False, edgecolor="#444444", linewidth=0.6, hatch=hatch))
        # About so many characters of 6 points go into the box.
        name, room = _shortened(names[stage.node]), 1.35 * 100 * width / (1.6 * units)
        if len(name) <= room:
            axes.text((start + end) / 2, top - height / 2, name, ha="center", va="center", fontsize=6)
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
    used, fleet, names, lines = _used_links(plan), plan.fleet, _short_names(plan), []
    for a, b in _slowest(plan)[:count]:
        way = "↔" if (b, a) in used and _is_symmetric(plan, a, b) else "→"
        rate = format_rate(fleet.flow_bytes_per_s(a, b) / _MBPS)
        between = f"{_shortened(names[a])} {way} {_shortened(names[b])}"
        lines.append(f"{between}: {rate} Mbit/s, {fleet.link(a, b).latency_s / _MS:.3g} ms ({used[a, b]})")
    return lines


def _slowest(plan: Plan) -> list[tuple[str, str]]:
    """Return the pairs (sender, receiver) of nodes, the slowest first; of a pair that sends both ways equally fast, one
    way."""
    found, fleet = _used_links(plan), plan.fleet
    once = [(a, b) for a, b in found if not (b < a and (b, a) in found and _is_symmetric(plan, a, b))]
    return sorted(once, key=lambda pair: (fleet.flow_bytes_per_s(*pair), -fleet.link(*pair).latency_s, pair))


def _is_symmetric(plan: Plan, a: str, b: str) -> bool:
    return plan.fleet.flow_bytes_per_s(a, b) == plan.fleet.flow_bytes_per_s(b, a)


def _used_links(plan: Plan) -> dict[tuple[str, str], str]:
    """Return the pairs (sender, receiver) of nodes, and the first cluster or ring that sends there."""
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
    return found
