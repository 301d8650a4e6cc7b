"""`ravnest stop` and `ravnest checkpoint`: what a run that goes on is asked for from another terminal.

In: the run's folder, or its name in runs/. Out: a request that the run takes within a second, and with --wait what
came of it, in words or with --json as one document.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ravnest.cli.runs import Run

if TYPE_CHECKING:
    from ravnest.driver.observe.report import RunEvent

Wait = Annotated[
    float, typer.Option("--wait", metavar="SECONDS", min=0, help="Wait so long for it to be done; 0: do not wait.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print what came of it as one JSON document.")]


def stop(
    run: Run,
    now: Annotated[
        bool, typer.Option("--now", help="At once, without a checkpoint: what came after the last one is lost.")
    ] = False,
    wait: Wait = 0.0,
    as_json: AsJson = False,
) -> None:
    """End a run as Ctrl-C in its terminal does: it finishes what is in flight and writes a checkpoint.

    `ravnest run --resume` goes on from there. With --wait the exit code is 1 where the run has not ended in time.
    """
    from ravnest.results.run_state import run_state
    from ravnest.results.steering import answer, ask

    asked = ask(run, "stop_now" if now else "stop")
    answer(asked, wait)
    found = run_state(asked.run) if wait else None
    state = "running" if found is None else found.state
    went_on = state in ("running", "unknown")
    said = "it is asked to stop" if went_on else f"it is {state}"
    if found is not None and state == "stopped at once":
        kept = f"`--resume` goes on from {found.checkpoint}" if found.checkpoint else "it has no checkpoint"
        said = f"it is {state}; {kept}"
    _tell(f"{asked.run}: {said}", {"run": str(asked.run), "asked": asked.kind, "state": state}, as_json=as_json)
    if wait and went_on:
        raise typer.Exit(1)


def checkpoint(run: Run, wait: Wait = 0.0, as_json: AsJson = False) -> None:
    """Let a run write a checkpoint: of the next round, which opens at once where none is under way.

    With --wait the exit code is 1 where none was written in time.
    """
    from ravnest.driver.observe.report import CheckpointWrittenEvent

    event = asked_for(run, "checkpoint", wait, as_json=as_json)
    if wait and not isinstance(event, CheckpointWrittenEvent):
        raise typer.Exit(1)


def evaluate_live(run: Path, wait: float, *, as_json: bool) -> None:
    """Let a run evaluate the held-out set now, where it trains. The exit code is 1 where no figure came in time."""
    if asked_for(run, "evaluate", wait, as_json=as_json) is None and wait:
        raise typer.Exit(1)


def asked_for(run: Path, kind: str, wait: float, *, as_json: bool) -> RunEvent | None:
    """Ask a run, wait for its answer, and print that."""
    from ravnest.cli.views.progress import event_line
    from ravnest.driver.observe.report import as_plain
    from ravnest.results.run_state import run_state
    from ravnest.results.steering import answer, ask

    asked = ask(run, "checkpoint" if kind == "checkpoint" else "evaluate")
    event = answer(asked, wait) if wait else None
    if event is not None:
        said = str(event_line(event))
    else:
        what = "write a checkpoint" if kind == "checkpoint" else "evaluate"
        said = f"{asked.run}: it is asked to {what}"
        if wait:
            state = run_state(asked.run).state
            goes_on = state in ("running", "unknown")
            said += f"; nothing came of it in {wait:g} s" if goes_on else f"; it is {state} without having done so"
    document = {"run": str(asked.run), "asked": kind, "answer": None if event is None else as_plain(event)}
    _tell(said, document, as_json=as_json)
    return event


def _tell(said: str, document: Mapping[str, object], *, as_json: bool) -> None:
    if as_json:
        json.dump(document, sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
    else:
        typer.echo(said)
