"""`ravnest compare`: several runs beside each other.

In: folders of runs, which are only read. Out: tables of what differs and of the losses, or with --json one document;
with --picture also their curves in one picture.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from ravnest.cli.runs import RUN_HELP


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help=f"{RUN_HELP}; two or more.")],
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw their losses here, as a .png file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as one JSON document.")] = False,
) -> None:
    """Compare runs: settings that differ, rates, and losses at equal numbers of samples."""
    from ravnest.errors import InvalidInput

    if picture is not None and (picture.suffix != ".png" or picture.is_dir()):
        raise InvalidInput("expected the name of a .png file", path=str(picture), key="picture")
    from ravnest.results.comparing import compare_runs

    found = compare_runs(runs)
    if picture is not None:
        from ravnest.pictures import draw_comparison

        try:
            draw_comparison({str(run.path): (run.trained, run.held_out) for run in found.runs}, picture)
        except OSError as error:
            raise InvalidInput(f"cannot be written: {error.strerror}", path=str(picture), key="picture") from None
    from ravnest.cli.views.comparison import comparison_document, show_comparison
    from ravnest.cli.views.tables import console

    if as_json:
        json.dump(comparison_document(found), sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
    else:
        show_comparison(found, console())
