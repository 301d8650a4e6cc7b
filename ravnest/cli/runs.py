"""`ravnest runs` and `ravnest status`: which runs there are, and how one of them is.

In: a folder of runs, or of one run, which is only read. Out: a table or lines, or with --json one document.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def runs(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where the runs lie.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the runs as one JSON document.")] = False,
) -> None:
    """Say which runs there are: running, finished, stopped, failed or killed, and how far each is."""
    from ravnest.results.run_state import states_in

    # A new user's folder has no runs/ yet, which is no mistake; another folder that is not there is one.
    found = [] if folder == Path("runs") and not folder.exists() else states_in(folder)
    from rich.console import Console

    from ravnest.cli.views.run_state import run_document, show_runs

    if as_json:
        json.dump({"runs": [run_document(run) for run in found]}, sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
    elif found:
        show_runs(found, Console())
    else:
        typer.echo(f"no runs in {folder} yet: `ravnest run` makes one")


def status(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder, such as runs/20260131-120000.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the state as one JSON document.")] = False,
) -> None:
    """Say how a run is: its state, samples, losses, what is left, and its last checkpoint."""
    from ravnest.results.run_state import find_run, run_state

    found = run_state(find_run(run))
    from rich.console import Console

    from ravnest.cli.views.run_state import run_document, show_status

    if as_json:
        json.dump(run_document(found), sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
    else:
        show_status(found, Console(soft_wrap=True))
