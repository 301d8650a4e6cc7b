"""Shows a rehearsal: predicted against achieved for the fleet, each cluster and each stage, and whether to trust it.

In: a rehearsal. Out: tables that fit 80 columns, and lines. This module decides the words and the layout; the figures
come from ravnest.rehearsal.comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rich.console import Console, Group
from rich.markup import escape

from cluster_planner import format_rate
from ravnest.cli.views.tables import legend, say, titled_table
from ravnest.formatting import duration, size
from ravnest.rehearsal.comparison import MOST_LATE, Compared, Rehearsal

_NOTHING = "–"


def show_rehearsal(rehearsal: Rehearsal, console: Console) -> None:
    """Prints the tables, and the lines of `verdict`."""
    console.print()
    console.print(_clusters(rehearsal))
    console.print()
    console.print(_times(rehearsal))
    console.print()
    console.print(_states(rehearsal))
    console.print()
    for line in verdict(rehearsal):
        say(console, line)


def verdict(rehearsal: Rehearsal) -> list[str]:
    """Returns the lines that say how far to trust the figures."""
    lines = []
    if not rehearsal.steady:
        lines.append(
            "Too short for a steady state: every stage must make an update after its first one. Rehearse for longer"
            " (--minutes, --samples) or faster (--speed)."
        )
    late = rehearsal.most_late_share
    if late is None:
        lines.append("How late this machine was is not known: no stage has come to a computation.")
    elif "computing" not in rehearsal.unfaithful_in:
        whole = "This machine kept up" if rehearsal.faithful else "In computing, this machine kept up"
        lines.append(
            f"{whole}: the latest stage took {late:.1%} more than the imitated computing"
            f" (up to {MOST_LATE:.0%} is taken as faithful)."
        )
    else:
        late_ones = [stage for stage in rehearsal.stages if stage.stage in rehearsal.late_stages]
        named = ", ".join(f"{each.stage} on {each.node} {each.late_share or 0.0:.1%}" for each in late_ones)
        advice = (
            "No speed that is worth waiting for would do: `ravnest simulate` needs no fast machine."
            if rehearsal.suggested_speed is None
            else f"Try --speed {rehearsal.suggested_speed:g}."
        )
        lines.append(
            f"NOT FAITHFUL: this machine is too small to imitate the plan at speed {rehearsal.speed:g}. Of the imitated"
            f" computing it was late by: {named} (more than {MOST_LATE:.0%}); what was achieved is too slow by about"
            f" as much. {advice}"
        )
    if "merges" in rehearsal.unfaithful_in:
        more = "more" if rehearsal.merges_late_share > 0 else "less"
        lines.append(
            f"NOT FAITHFUL: snapshots and merges go at this machine's own speed, not at speed {rehearsal.speed:g}: up"
            f" to {abs(rehearsal.merges_late_share):.0%} of a stage's time {more} than at speed 1. No stage counts it"
            " as late; nearer to --speed 1 it is less."
        )
    if "links" in rehearsal.unfaithful_in:
        lines.append(
            f"NOT FAITHFUL: messages came up to {duration(rehearsal.links_late_s or 0.0)} later than the plan's links"
            f" bring them (the mean of the latest stage, in the plan's time): {rehearsal.links_late_share:.0%} of a"
            " micro-batch. What waits for messages is that much too slow; at a lower --speed it is less."
        )
    return lines


def _clusters(rehearsal: Rehearsal) -> Group:
    speed = "" if rehearsal.speed == 1 else f" (rehearsed at {rehearsal.speed:g} times the speed; in the plan's time)"
    table = titled_table(f"predicted → achieved{speed}")
    for name in ("samples/s", "per micro-batch", "bottleneck busy", "staleness"):
        table.add_column(name, justify="right")
    for each in rehearsal.clusters:
        table.add_row(
            escape(each.name),
            _pair(each.samples_per_s, format_rate),
            _pair(each.step_s, duration),
            _pair(each.busy, _percent),
            _staleness(each.mean_staleness, each.max_staleness),
        )
    if len(rehearsal.clusters) > 1:
        table.add_row("fleet", f"[bold]{_pair(rehearsal.samples_per_s, format_rate)}[/bold]", "", "", "")
        averaging = _pair(rehearsal.averaging_s, duration)
        words = (
            f"a round of averaging: {averaging} (from opening to commit, with the wait for each cluster's next update)."
            f" Staleness: mean, and the most of {rehearsal.staleness_bound}"
            " allowed."
        )
    else:
        words = f"Staleness: mean, and the most of {rehearsal.staleness_bound} allowed."
    return Group(table, legend(words))


def _times(rehearsal: Rehearsal) -> Group:
    table = titled_table("each stage's time")
    table.add_column("node", overflow="fold")
    for name in ("per micro-batch", "busy", "waited for", "other"):
        table.add_column(name, justify="left" if name in ("waited for", "other") else "right")
    for each in rehearsal.stages:
        cells = (_pair(each.step_s, duration), _pair(each.busy, _percent), _shares(each.waiting), _shares(each.other))
        table.add_row(each.stage, escape(each.node), *cells)
    words = (
        "busy, waited for, other: shares of the stage's time, in the steady state. input: another stage; window:"
        " latency; staleness: its limit; lag: averaging. other: snapshots and merges, evaluation, and threads of the"
        " stage that hand over to each other."
    )
    return Group(table, legend(words))


def _shares(of: Mapping[str, float]) -> str:
    largest = sorted(of.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {share:.0%}" for name, share in largest if share >= 0.005) or _NOTHING


def _states(rehearsal: Rehearsal) -> Group:
    table = titled_table("each stage's staleness and tensors, and by how much this machine was late")
    table.add_column("node", overflow="fold")
    for name in ("staleness", "tensors", "late"):
        table.add_column(name, justify="right")
    for each in rehearsal.stages:
        late = _NOTHING if each.late_share is None else f"{each.late_share:.1%}"
        staleness = _staleness(each.mean_staleness, each.max_staleness)
        style = "yellow" if each.stage in rehearsal.late_stages else ""
        cells = (staleness, _pair(each.memory_bytes, size), late)
        table.add_row(each.stage, escape(each.node), *cells, style=style)
    words = (
        "staleness: mean, most. tensors: the most at one time. late: by how much this machine took longer than the"
        " imitated computing, as a share of it."
    )
    tuned = [each for each in rehearsal.clusters if each.window.achieved not in (None, each.window.predicted)]
    if tuned:
        windows = ", ".join(f"{each.name} {_pair(each.window, '{:.0f}'.format)}" for each in tuned)
        words += f" tensors: predicted for the largest window that the run tuned itself to ({escape(windows)})."
    return Group(table, legend(words))


def _pair(compared: Compared, words: Callable[[float], str]) -> str:
    sides = [_NOTHING if side is None else words(side) for side in (compared.predicted, compared.achieved)]
    return " → ".join(sides)


def _percent(share: float) -> str:
    return f"{share:.0%}"


def _staleness(mean: float | None, most: int | None) -> str:
    return _NOTHING if mean is None or most is None else f"{mean:.2f}, {most}"
