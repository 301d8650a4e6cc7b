"""`ravnest rehearse`: runs a plan on this machine with imitated nodes, and compares the result with the prediction.

In: the command's options. Out: the view of a run, then tables of what was predicted and what was achieved, or with
--json both as one document. Everything else is `ravnest.rehearse`.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer


def rehearse(
    plan: Annotated[Path, typer.Argument(metavar="PLAN_YAML", help="What `ravnest plan` wrote.")] = Path("plan.yaml"),
    speed: Annotated[
        float,
        typer.Option(help="How many times as fast the imitated machines and links are; figures are scaled back."),
    ] = 1.0,
    samples: Annotated[int | None, typer.Option(help="End after so many samples of the fleet.")] = None,
    minutes: Annotated[float | None, typer.Option(help="End after so many minutes of this machine's time.")] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Go on until the job's own end.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to write; without it, a new folder in runs/."),
    ] = None,
    scenario: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Machines that come and go meanwhile: see docs/file-formats.md."),
    ] = None,
    timeline: Annotated[
        bool,
        typer.Option("--timeline", help="Record what each stage does and when: trace.json, for ui.perfetto.dev."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")] = False,
) -> None:
    """Run the plan on this machine with its nodes and links imitated: predicted against achieved.

    Trains for real, for 24 updates of the slowest cluster and 4 rounds of averaging, but no longer than 3 minutes, \
unless --samples, --minutes or --whole says otherwise.
    """
    import ravnest
    from ravnest.cli.views.lost_output import lasting_console
    from ravnest.cli.views.progress import LiveView, PlainView, note

    console = lasting_console(stderr=as_json, soft_wrap=True)
    view = LiveView(console) if console.is_terminal else PlainView(console)
    with view, redirect_stdout(sys.stderr) if as_json else nullcontext():
        rehearsal = ravnest.rehearse(
            plan,
            speed=speed,
            samples=samples,
            minutes=minutes,
            whole=whole,
            out=out,
            timeline=timeline,
            scenario=scenario,
            observer=view,
            warn=note,
        )
    from ravnest.cli.views.rehearsal import show_rehearsal
    from ravnest.cli.views.result import show_result
    from ravnest.driver.observe.report import as_plain as run_as_plain
    from ravnest.rehearsal.comparison import as_plain

    if as_json:
        document = {"plan": str(plan), "rehearsal": as_plain(rehearsal), "run": run_as_plain(rehearsal.run)}
        json.dump(document, sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
    else:
        show_result(replace(rehearsal.run, stages=()), plan, console)  # their figures are in the rehearsal's tables
        show_rehearsal(rehearsal, console)
    if rehearsal.run.stopped_early:
        raise typer.Exit(ravnest.Interrupted.exit_code)
