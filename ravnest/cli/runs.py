"""`ravnest runs` and `ravnest status`: which runs there are, and how one of them is.

In: a folder of runs, or of one run, which is only read. Out: a table or lines, or with --json one document.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

RUN_HELP = "The run's folder, or its name in runs/"
Run = Annotated[Path, typer.Argument(metavar="RUN", help=f"{RUN_HELP}.")]


def runs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the runs lie.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the runs as one JSON document.")] = False,
) -> None:
    """Say which runs there are: running, finished, stopped, failed or killed, and how far each is."""
    from ravnest.results.run_state import states_in

    # A new user's folder has no runs/ yet, which is no mistake; another folder that is not there is one.
    found = [] if folder == Path("runs") and not folder.exists() else states_in(folder)
    from ravnest.cli.views.run_state import run_document, show_runs
    from ravnest.cli.views.tables import console

    if as_json:
        json.dump({"runs": [run_document(run) for run in found]}, sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
    elif found:
        show_runs(found, console())
    else:
        typer.echo(f"no runs in {folder} yet: `ravnest run` makes one")


def status(
    run: Run,
    as_json: Annotated[bool, typer.Option("--json", help="Print the state as one JSON document.")] = False,
) -> None:
    """Say how a run is: its state, samples, losses, what is left, and its last checkpoint."""
    from ravnest.results.run_state import find_run, run_state

    found = run_state(find_run(run))
    from ravnest.cli.views.run_state import run_document, show_status
    from ravnest.cli.views.tables import console

    if as_json:
        json.dump(run_document(found), sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
    else:
        show_status(found, console(soft_wrap=True))
