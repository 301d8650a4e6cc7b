"""Shows what `doctor` found: a line for each finding, what to do about it below; or all of it as JSON."""

from __future__ import annotations

from dataclasses import asdict

from rich.console import Console
from rich.markup import escape

from cluster_planner import counted
from ravnest.profiling.doctor import Checked

_MARKS = {"fails": "[red]fails[/red]", "warns": "[yellow]warns[/yellow]"}


def show_doctor(checked: Checked, console: Console) -> None:
    """Print it for a person: what would fail first."""
    for finding in sorted(checked.findings, key=lambda each: each.level):
        line = f"{_MARKS[finding.level]}  [bold]{escape(finding.about)}[/bold] {escape(finding.message)}"
        console.print(line, highlight=False)
        console.print(f"       {escape(finding.advice)}", style="dim", highlight=False)
    failing = sum(finding.level == "fails" for finding in checked.findings)
    seen = f"looked at {counted(len(checked.facts), 'machine')} and {counted(len(checked.pairs), 'pair')}"
    verdict = "nothing would make a run fail" if not failing else f"{counted(failing, 'thing')} would make a run fail"
    console.print(f"[bold]{verdict}[/bold] ({seen})", highlight=False)


def doctor_document(checked: Checked) -> dict[str, object]:
    """What JSON takes. SI units."""
    return {
        "would_fail": checked.would_fail,
        "findings": [asdict(finding) for finding in checked.findings],
        "machines": {name: asdict(facts) for name, facts in checked.facts.items()},
        "pairs": [{"between": list(pair), "latency_s": checked.latencies_s.get(pair)} for pair in checked.pairs],
    }
