"""`ravnest attach`: the live view of a run that goes on, in another terminal than its own.

In: the run's folder, which is only read. Out: the view of `ravnest run`, until the run ends or Ctrl-C leaves it.
"""

from __future__ import annotations

import time
from pathlib import Path

import typer

from ravnest.cli.runs import Run

_LOOK_S = 0.25


def attach(run: Run) -> None:
    """Show the live view of a run that goes on. Ctrl-C leaves the view, and the run goes on.

    The exit code is 0 where the run has finished or the view was left, 130 where the run was stopped, else 1.
    """
    from ravnest.results.run_state import run_state
    from ravnest.results.steering import require_running

    path = require_running(run)
    try:
        _show(path)
    except KeyboardInterrupt:
        typer.echo(f"the run goes on; `ravnest stop {path}` ends it")
        return
    state = run_state(path).state
    typer.echo(f"{path}: it is {state}")
    if state != "finished":
        raise typer.Exit(130 if state in ("stopped", "stopped at once") else 1)


def _show(path: Path) -> None:
    """Show the view until the run ends."""
    from ravnest.checkpoints.run_folder import RunFolder
    from ravnest.checkpoints.run_lock import look_at_lock
    from ravnest.cli.views.lost_output import lasting_console
    from ravnest.cli.views.progress import LiveView, PlainView
    from ravnest.results.run_log import news_of

    console = lasting_console(stderr=False, soft_wrap=True)
    view = LiveView(console) if console.is_terminal else PlainView(console)
    with view:
        events = news_of(
            RunFolder(path).metrics,
            lambda: look_at_lock(path)[0] in ("held", "unknown"),
            lambda: time.sleep(_LOOK_S),
        )
        for event in events:
            view.on(event)
