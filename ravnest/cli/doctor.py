"""`ravnest doctor`: names what would make a run fail, before it does.

In: the command's options. Out: the findings, as lines or with --json as one document; the exit code is 0 when nothing
would fail, and 1 when something would. Everything else is `ravnest.doctor`.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

WOULD_FAIL = 1


def doctor(
    file: Annotated[
        Path | None, typer.Argument(metavar="PLAN_OR_NODES_YAML", help="What the machines are to fit.")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="RAY_ADDRESS", envvar="RAY_ADDRESS", help="A running Ray cluster; without one, this machine alone."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as one JSON document.")] = False,
) -> None:
    """Say per node and pair what would make a run fail: reachability, versions, tokens, memory, devices, code, data."""
    import ravnest
    from ravnest.cli.views.progress import note
    from ravnest.cli.views.steps import Steps
    from ravnest.cli.views.tables import console

    with (
        redirect_stdout(sys.stderr) if as_json else nullcontext(),
        Steps(console(stderr=True, quiet=as_json)) as steps,
    ):
        checked = ravnest.doctor(file, address=address, progress=steps.begin, warn=note)
    from ravnest.cli.views.machines import doctor_document, show_doctor

    if as_json:
        json.dump(doctor_document(checked), sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
    else:
        show_doctor(checked, console())
    if checked.would_fail:
        raise typer.Exit(WOULD_FAIL)
