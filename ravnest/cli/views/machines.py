"""Shows what `doctor` found and what `profile` measured, on a terminal or as JSON.

In: a report or a profile. Out: a line for each finding with its advice below; tables of nodes and links; or one JSON
document each, and the comments at the head of nodes.yaml.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cluster_planner import format_count, format_rate
from ravnest.formatting import size
from ravnest.profiling.doctor import DoctorReport
from ravnest.profiling.profile import Profile

_MARKS = {"fails": "[red]fails[/red]", "warns": "[yellow]warns[/yellow]"}


def show_doctor(checked: DoctorReport, console: Console) -> None:
    """Prints the findings, those that would make a run fail first."""
    findings = Table.grid(padding=(0, 2, 0, 0))
    findings.add_column(no_wrap=True)
    findings.add_column(overflow="fold")
    for finding in sorted(checked.findings, key=lambda each: each.level):
        findings.add_row(_MARKS[finding.level], Text.assemble((finding.about, "bold"), " ", finding.message))
        findings.add_row("", Text(finding.advice, style="dim"))
    if checked.findings:
        console.print(findings)
    failing = sum(finding.level == "fails" for finding in checked.findings)
    seen = f"looked at {format_count(len(checked.facts), 'machine')} and {format_count(len(checked.pairs), 'pair')}"
    verdict = (
        "nothing would make a run fail" if not failing else f"{format_count(failing, 'thing')} would make a run fail"
    )
    console.print(f"[bold]{verdict}[/bold] ({seen})", highlight=False)


def doctor_document(checked: DoctorReport) -> dict[str, object]:
    """Returns the report as one JSON document, in SI units."""
    return {
        "would_fail": checked.would_fail,
        "findings": [asdict(finding) for finding in checked.findings],
        "machines": {name: asdict(facts) for name, facts in checked.facts.items()},
        "pairs": [{"between": list(pair), "latency_s": checked.latencies_s.get(pair)} for pair in checked.pairs],
    }


_MOST_PAIRS = 30


def comments(found: Profile) -> list[str]:
    """Returns the comment lines at the head of a measured nodes.yaml."""
    when = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    head = f"Measured by `ravnest profile`, {when} UTC; speeds with {found.work}."
    return [head, *found.notes, *(f"Missing: {line}" for line in found.missing)]


def show_profile(found: Profile, console: Console) -> None:
    """Prints what was measured, as tables, with notes and with what is missing."""
    console.print(_nodes(found))
    if found.links.latencies:
        console.print()
        console.print(_links(found))
    console.print()
    console.print(f"speeds are those of {escape(found.work)}", style="dim", highlight=False)
    traffic = f"moving a byte in memory takes as long as {found.fleet.flops_per_byte:.3g} FLOPs"
    console.print(traffic, style="dim", highlight=False)
    for note in found.notes:
        console.print(f"note: {escape(note)}", highlight=False)
    for line in found.missing:
        console.print(f"[yellow]missing[/yellow]: {escape(line)}", highlight=False)


def profile_document(found: Profile, output: Path) -> dict[str, object]:
    """Returns the profile as one JSON document, in SI units: seconds, bytes/s, FLOP/s. `output` is the nodes.yaml."""
    return {
        "nodes_file": str(output),
        "work": found.work,
        "flops_per_byte": found.fleet.flops_per_byte,
        "nodes": [asdict(node) for node in found.fleet.nodes],
        "links": [asdict(link) for link in found.fleet.links],
        "speeds": {name: asdict(speed) for name, speed in found.speeds.items()},
        "latencies": [{"between": list(pair), **asdict(found.links.latencies[pair])} for pair in found.links.latencies],
        "transfers": [{"from": a, "to": b, **asdict(rate)} for (a, b), rate in found.links.rates.items()],
        "sent_to_several": {name: asdict(rate) for name, (_, rate) in found.links.sent.items()},
        "received_from_several": {name: asdict(rate) for name, (_, rate) in found.links.received.items()},
        "machines": {name: asdict(facts) for name, facts in found.facts.items()},
        "notes": list(found.notes),
        "missing": list(found.missing),
    }


def _nodes(found: Profile) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("node", overflow="fold")
    table.add_column("device")
    for name in ("GFLOP/s", "memory", "up Mbit/s", "down Mbit/s"):
        table.add_column(name, justify="right", no_wrap=True)
    for node in found.fleet.nodes:
        spread = found.speeds[node.name].flops_per_s.spread
        table.add_row(
            escape(node.name),
            node.device,
            f"{format_rate(node.flops_per_s / 1e9)} ±{spread / 2:.0%}",
            size(node.memory_bytes),
            format_rate(node.up_bytes_per_s / 125_000),
            format_rate(node.down_bytes_per_s / 125_000),
        )
    return table


def _links(found: Profile) -> Table:
    links = found.links
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("pair", overflow="fold")
    for name in ("latency ms", "jitter ms", "→ Mbit/s", "← Mbit/s"):
        table.add_column(name, justify="right", no_wrap=True)
    for a, b in sorted(links.latencies)[:_MOST_PAIRS]:
        known = links.latencies[a, b]
        rates = [links.rates.get(pair) for pair in ((a, b), (b, a))]
        cells = ["–" if rate is None else format_rate(rate.value / 125_000) for rate in rates]
        table.add_row(escape(f"{a} – {b}"), f"{known.seconds * 1e3:.3g}", f"{known.jitter_s * 1e3:.2g}", *cells)
    if len(links.latencies) > _MOST_PAIRS:
        table.add_row(f"… and {len(links.latencies) - _MOST_PAIRS} more pairs")
    return table
