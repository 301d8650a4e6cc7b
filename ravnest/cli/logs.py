"""`ravnest logs`: what has happened in a run, or what one of its stages has printed.

In: the folder of a run, which is only read. Out: lines; with --follow also those that come, until the run ends.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from ravnest.cli.runs import Run
from ravnest.formatting import harmless

_POLL_S = 0.5


def logs(
    run: Run,
    stage: Annotated[
        str | None,
        typer.Argument(metavar="STAGE", help="A stage, such as c0.s1, or ray; without it, events."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until the run ends.")] = False,
) -> None:
    """Print what has happened in a run; or what a stage has printed, and how it failed; or Ray's log.

    With --follow, Ctrl-C ends the lines, and the run goes on.
    """
    try:
        _print(run, stage, follow=follow)
    except KeyboardInterrupt:
        if not follow:
            raise
        typer.echo("the run goes on", err=True)


def _print(run: Path, stage: str | None, *, follow: bool) -> None:
    from ravnest.checkpoints.run_folder import RunFolder
    from ravnest.checkpoints.run_lock import look_at_lock
    from ravnest.results.run_log import by_session, lines_of, lines_of_stage, log_of, stages_of
    from ravnest.results.run_records import events_of
    from ravnest.results.run_state import find_run

    run = find_run(run)
    folder = RunFolder(run)

    def goes_on() -> bool:
        return follow and look_at_lock(run)[0] in ("held", "unknown")

    def wait() -> None:
        sys.stdout.flush()
        time.sleep(_POLL_S)

    if stage is not None:
        printed = False
        if stage in stages_of(folder):
            lines = lines_of_stage(folder, stage, goes_on, wait)
        else:
            lines = lines_of(log_of(folder, stage), goes_on, wait)
        for line in lines:  # the stage may be on another's machine
            sys.stdout.write(harmless(line.removesuffix("\n")) + "\n" * line.endswith("\n"))
            printed = True
        if not printed:
            typer.echo(f"{stage} has printed nothing", err=True)
        return
    from ravnest.cli.views.progress import event_line
    from ravnest.cli.views.tables import console, say
    from ravnest.formatting import duration

    shown_on = console(soft_wrap=True)
    shown = 1
    for session, at_s, event in by_session(events_of(folder.metrics, goes_on, wait)):
        if session != shown:
            shown = session
            say(shown_on, f"session {session}: the run was resumed or began again, and its clock goes on from 0", "dim")
        words = event_line(event)
        if words is not None:
            say(shown_on, f"{duration(at_s) if at_s >= 1 else f'{at_s:.1f} s'} · {words}")
