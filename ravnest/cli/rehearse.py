"""`ravnest rehearse`: run a plan on this machine with its nodes imitated, and say what was predicted and what came.

Decides the command's options, which of two views watches, and what is printed at the end. How nodes are imitated is
ravnest.driver.imitation's, what is compared ravnest.rehearsal.comparison's.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

STOPPED_EARLY = 130


def rehearse(
    plan: Annotated[Path, typer.Argument(metavar="[PLAN_YAML]", help="What `ravnest plan` wrote.")] = Path("plan.yaml"),
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
    _refuse(speed, samples, minutes, whole)
    from rich.console import Console

    from ravnest.cli.plan_file import read_plan

    made, again = read_plan(plan)  # before torch and Ray are imported: what is wrong with the file is told at once
    from ravnest.cli.views.progress import LiveView, PlainView
    from ravnest.cli.views.rehearsal import show_rehearsal
    from ravnest.cli.views.result import show_result
    from ravnest.driver import run as launch_run
    from ravnest.driver.imitation import Imitation
    from ravnest.driver.observe.report import NoticeEvent
    from ravnest.driver.observe.report import as_plain as run_as_plain
    from ravnest.formatting import duration
    from ravnest.rehearsal.comparison import as_plain, compare, extent

    until = extent(again, speed, samples=samples, minutes=minutes, whole=whole)
    console = Console(stderr=as_json, soft_wrap=True)
    view = LiveView(console) if console.is_terminal else PlainView(console)
    with view, redirect_stdout(sys.stderr) if as_json else nullcontext():
        if until.expected_s is not None:
            view.on(NoticeEvent(f"rehearsing at speed {speed:g}: up to about {duration(until.expected_s)} of training"))
        if until.cut_short:
            view.on(
                NoticeEvent("that is less than 24 updates and 4 rounds: a larger --speed or --minutes would show more")
            )
        result = launch_run(
            made,
            plan,
            out_dir=out,
            observer=view,
            timeline=timeline,
            imitate=Imitation(speed=speed),
            limit=until.limit,
        )
    rehearsal = compare(again, result, speed)
    if as_json:
        document = {"plan": str(plan), "rehearsal": as_plain(rehearsal), "run": run_as_plain(result)}
        json.dump(document, sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
    else:
        show_result(replace(result, stages=()), plan, console)  # their figures are in the rehearsal's tables
        show_rehearsal(rehearsal, console)
    if result.stopped_early:
        raise typer.Exit(STOPPED_EARLY)


def _refuse(speed: float, samples: int | None, minutes: float | None, whole: bool) -> None:
    """Options that make no sense, before anything is read."""
    import math

    from ravnest.errors import InvalidInput

    if not (math.isfinite(speed) and speed > 0):
        raise InvalidInput(f"must be a finite number above 0, not {speed:g}", key="--speed")
    if samples is not None and samples < 1:
        raise InvalidInput(f"must be at least 1, not {samples}", key="--samples")
    if minutes is not None and not (math.isfinite(minutes) and minutes > 0):
        raise InvalidInput(f"must be a finite number above 0, not {minutes:g}", key="--minutes")
    given = {"--samples": samples is not None, "--minutes": minutes is not None, "--whole": whole}
    if sum(given.values()) > 1:
        named = " and ".join(option for option, there in given.items() if there)
        raise InvalidInput(f"{named} say when to end: give one of them", key="--samples")
